"""NAT translations of connections on this host, queried from its connection tracking over ctnetlink if enabled.

The flow id joins both ends without them. They are an addition for nodes that translate addresses themselves, by
kube-proxy or a masquerade. Queries cover the network namespace of the agent only.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from kafka_probe.connections.identity import Identity, endpoint
from kafka_probe.errors import StartError
from kafka_probe.events import Nat

log = logging.getLogger("kafka_probe")

LOSSES = {
    "nat_not_asked": "connections that `--conntrack` did not look up, because too many opened at a time: nat is null"
}

ASKED_AT_ONCE = 1000  # queries per call; each takes about two milliseconds


class Conntrack:
    """A client of the kernel's connection tracking. After a refusal it logs one warning and sends no more queries.

    Raises `StartError` if pyroute2, the package of the extra `conntrack`, is not installed.
    """

    def __init__(self) -> None:
        # Imported here: pyroute2 is optional and takes 25 MB, and most agents do not query.
        try:
            from pyroute2 import NetlinkError
            from pyroute2.netlink.nfnetlink import nfctsocket
        except ImportError:
            raise StartError(
                "--conntrack true needs the Python package pyroute2: "
                "pip install '.[conntrack]' in kafka-probe's clone, or set --conntrack false"
            ) from None

        self._error: Any = NetlinkError
        self._netlink: Any = nfctsocket
        self._refused = False
        self.not_asked = 0

    def translations(self, identities: Sequence[Identity]) -> list[Nat | None]:
        """Return `local` and `peer` of each connection beyond the NAT; None if not translated here or not queried."""
        if self._refused or not identities:
            return [None] * len(identities)
        with ExitStack() as stack:
            sockets: dict[int, Any] = {
                family: stack.enter_context(self._netlink.NFCTSocket(nfgen_family=family))
                for family in (socket.AF_INET, socket.AF_INET6)
            }
            asked = [self._translation(identity, sockets) for identity in identities[:ASKED_AT_ONCE]]
        rest = len(identities) - len(asked)
        self.not_asked += rest
        return [*asked, *[None] * rest]

    def _translation(self, identity: Identity, sockets: Mapping[int, Any]) -> Nat | None:
        if self._refused:
            return None
        family = socket.AF_INET6 if identity.local.startswith("[") else socket.AF_INET
        known, wanted = ("reply", "CTA_TUPLE_ORIG") if identity.server_side else ("orig", "CTA_TUPLE_REPLY")
        (source, source_port), (target, target_port) = map(_parts, (identity.local, identity.peer))
        as_seen = self._netlink.NFCTAttrTuple(
            family, saddr=source, daddr=target, proto=socket.IPPROTO_TCP, sport=source_port, dport=target_port
        )
        try:
            found, *_ = sockets[family].entry("get", **{f"tuple_{known}": as_seen})
        except (self._error, OSError) as error:
            if getattr(error, "code", None) != errno.ENOENT:
                self._refused = True
                log.warning(
                    "Connection tracking cannot be queried (%s), so nat of new connections is null until a restart. "
                    "Grant CAP_NET_ADMIN and load nf_conntrack_netlink, or set --conntrack false.",
                    error,
                )
            return None
        beyond = self._netlink.NFCTAttrTuple.from_netlink(family, found.get_attr(wanted))
        local, peer = (
            endpoint(family, socket.inet_pton(family, address), port)
            for address, port in ((beyond.daddr, beyond.dport), (beyond.saddr, beyond.sport))
        )
        return None if (local, peer) == (identity.local, identity.peer) else {"local": local, "peer": peer}


def _parts(endpoint: str) -> tuple[str, int]:
    address, _, port = endpoint.rpartition(":")
    return address.strip("[]"), int(port)
