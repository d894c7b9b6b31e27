"""What this host's NAT makes of connections: asked of its connection tracking over ctnetlink, where that is wanted.

An addition to the flow id, which joins both ends without it: for nodes that translate by themselves, by kube-proxy or a
masquerade. Asked is the network namespace of the agent.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from kafka_probe.connections.identity import Identity, endpoint

log = logging.getLogger("kafka_probe")

Translation = dict[str, str]

LOSSES = {"nat_not_asked": "connections opened so many at a time that `--conntrack` did not ask for them: nat is null"}

ASKED_AT_ONCE = 1000  # each takes about two milliseconds


class Conntrack:
    """Answers while the kernel does; if it refuses, the log says so once, and nothing is asked any more."""

    def __init__(self) -> None:
        # It takes 25 MB, and most agents do not ask.
        from pyroute2 import NetlinkError
        from pyroute2.netlink.nfnetlink import nfctsocket

        self._error: Any = NetlinkError
        self._netlink: Any = nfctsocket
        self._refused = False
        self.not_asked = 0

    def translations(self, identities: Sequence[Identity]) -> list[Translation | None]:
        """Of each connection `local` and `peer` as they are beyond the NAT; None where it is not translated here."""
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

    def _translation(self, identity: Identity, sockets: Mapping[int, Any]) -> Translation | None:
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
                log.warning("nat of new connections stays unknown: connection tracking does not answer: %s", error)
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
