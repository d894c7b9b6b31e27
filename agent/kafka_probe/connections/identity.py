"""Identities of connections: both ends, the flow id that is the same on both hosts, and this end's process."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from functools import lru_cache

from kafka_probe.capture.sample import OPEN_DATA, Sample, unpack
from kafka_probe.workloads import Owner

_SHARED = 1024
_IPV4_MAPPED = bytes(10) + b"\xff\xff"  # RFC 4291, 2.5.5.2


@dataclass(frozen=True, slots=True)
class Identity:
    """The facts that are known when the agent first sees a connection."""

    conn: int
    server_side: bool
    from_start: bool
    flow_id: str | None  # None: no hook has seen the socket yet
    local: str
    peer: str
    peer_network: str
    netns: int
    cookie: int | None  # the kernel's number of the socket, which it assigns at the first request
    handshake_us: int | None  # None if sent payload had already been acknowledged

    @property
    def side(self) -> str:
        return "server" if self.server_side else "client"


def flow_id(server_side: bool, tx_base: int, rx_base: int) -> str:
    """Return 16 hexadecimal digits: the first sequence numbers of the client side and of the server side.

    At the client side tx_base is the ISN, one less than rx_base at the server side; arithmetic modulo 2**32.
    """
    first, second = (rx_base, tx_base) if server_side else ((tx_base + 1) % (1 << 32), rx_base)
    return f"{first:08x}{second:08x}"


def endpoint(family: int, address: bytes, port: int) -> str:
    """Return address:port; IPv6 in brackets, an IPv4-mapped address as IPv4."""
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(family, address[:4])}:{port}"
    mapped = address.startswith(_IPV4_MAPPED)
    return endpoint(socket.AF_INET, address[12:], port) if mapped else f"[{socket.inet_ntop(family, address)}]:{port}"


def network(endpoint: str) -> str:
    """Return the assumed network of an endpoint: the first 24 bits of an IPv4 address, 64 of an IPv6 one."""
    return _network(endpoint.rpartition(":")[0])


@lru_cache(_SHARED)  # many connections share one text
def _network(address: str) -> str:
    if address.startswith("["):
        return str(ipaddress.ip_network((address.strip("[]"), 64), strict=False))
    return f"{address.rpartition('.')[0]}.0/24"


_seconds = lru_cache(_SHARED)(int)  # most sockets have the same keepalive
_local = lru_cache(_SHARED)(endpoint)  # server ends mostly have the same local endpoint


def read_keepalive_s(sample: Sample) -> int:
    """Return the silence after which the kernel probes the peer, 0 if never, from an OPEN or OWNER sample."""
    return _seconds(unpack(sample, OPEN_DATA)["keepalive_s"])


def read_open(sample: Sample) -> tuple[Identity, Owner]:
    """Return the identity and the owner from a sample whose data is OPEN_DATA: OPEN, OWNER, RESET or LISTEN."""
    data = unpack(sample, OPEN_DATA)
    server_side, family = bool(data["server_side"]), data["family"]
    identity = Identity(
        conn=int(sample["conn"]),
        server_side=server_side,
        from_start=bool(data["from_start"]),
        flow_id=flow_id(server_side, data["tx_base"], data["rx_base"]),
        local=_local(family, data["local_address"].tobytes(), data["local_port"]),
        peer=(peer := endpoint(family, data["peer_address"].tobytes(), data["peer_port"])),
        peer_network=network(peer),
        netns=data["netns"],
        cookie=data["cookie"] or None,
        handshake_us=data["handshake_us"] or None,
    )
    owner = Owner(
        pid=data["tgid"],
        start_boottime_ns=data["start_ns"],
        comm=data["comm"],
        uid=data["uid"],
        netns=identity.netns,
        cgroup_id=data["cgroup_id"],
        cgroup_v1_id=data["cgroup_v1_id"],
        cmdline=data["command_line"].tobytes()[: data["command_line_size"]],
    )
    return identity, owner
