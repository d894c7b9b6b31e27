"""Divides the budget of a table or queue of the agent among peers, as bpf/peer_limit.h does for the ring.

A budget up to half full accepts everything. Above that, each peer may take an eighth of it, plus a quarter of the bytes
freed meanwhile: so one peer alone cannot fill it. A peer is the same as in bpf/peer_limit.h: at a server end, the
clients of an IPv4 address or of an IPv6 /64; at a client end, a process. This module stores sizes only, never items.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from threading import RLock
from typing import Any

PEERS = 4096


def peer_of(side: str | None, endpoint: str, pid: object) -> str:
    """Return the peer of a connection, or of a reset if `side` is None.

    endpoint: address:port of the far end; pid: the process of the watched end.
    """
    if side == "client":
        return f"process {pid}"
    address = endpoint.rpartition(":")[0]
    return network_of(address.strip("[]")) if address.startswith("[") else address


def network_of(host: str) -> str:
    """Return the network whose clients are one peer: an IPv4 address, which IPv6 may contain, or an IPv6 /64."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)


def peer_of_event(event: Mapping[str, Any]) -> str | None:
    """Return the peer of an event's connection or reset; None if the event belongs to no single connection."""
    endpoint = event.get("peer")
    return endpoint and peer_of(event.get("side"), endpoint, event.get("workload", {}).get("pid"))


class Shares:
    """Counts the bytes that each peer took while the budget was more than half full.

    Remembers the last `PEERS` peers that tried; a forgotten peer starts again with its full share.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._taken: dict[str, tuple[int, int]] = {}  # bytes of a peer, and `freed` when that was computed

    def take(self, peer: str, size: int, used: int, freed: int = 0) -> bool:
        """Take `size` bytes for a peer; return False if its share does not suffice.

        used: bytes of the budget in use; freed: bytes that were freed so far.
        """
        if used <= self._budget_bytes // 2:
            return True
        taken, freed_then = self._taken.pop(peer, (0, freed))
        taken = max(0, taken - (freed - freed_then) // 4)
        fits = taken + size <= self._budget_bytes // 8
        self._taken[peer] = taken + size * fits, freed
        if len(self._taken) > PEERS:
            del self._taken[next(iter(self._taken))]
        return fits

    def give_back(self, peer: str, size: int) -> None:
        """Return to a peer's share what the peer took of it."""
        if peer in self._taken:
            taken, freed = self._taken[peer]
            # The peer gets these bytes back in full, so `take` must not add a quarter of them again.
            self._taken[peer] = max(0, taken - size), freed + size


class SharedBudget:
    """A budget in bytes that peers share; objects take bytes while they exist. Refusals are counted in `losses`.

    Thread-safe: an object returns its bytes in whichever thread drops the last reference to it.
    """

    def __init__(self, limit_bytes: int, losses: Counter[str]) -> None:
        self._limit_bytes = limit_bytes
        self._losses = losses
        self._shares = Shares(limit_bytes)
        self._freed_bytes = 0
        self._lock = RLock()
        self.used_bytes = 0

    def take(self, peer: str, size: int, loss: str, times: int = 1) -> bool:
        """Take `size` bytes for a peer. If they do not fit, add `times` to the loss and return False."""
        with self._lock:
            fits = self.used_bytes + size <= self._limit_bytes and self._shares.take(
                peer, size, self.used_bytes, self._freed_bytes
            )
            self.used_bytes += size * fits
        if not fits:
            self._losses[loss] += times
        return fits

    def give_back(self, size: int, peer: str | None = None) -> None:
        """Return bytes to the budget, and to the share of the peer that took them, if it is named."""
        with self._lock:
            if peer is not None:
                self._shares.give_back(peer, size)
            self.used_bytes -= size
            self._freed_bytes += size
