"""Passes over the open connections: which `open` events a report sends again.

A pass has the keys of all connections that are open when it begins, and takes one interval. It has 60 parts, so that no
report has a burst, and the kernel's table, which must be read as a whole, is read once in a part. This module holds
keys only, so it keeps no connection that has ended.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, MutableSequence, Sequence
from typing import Generic, TypeVar

SocketEnds = tuple[int, str, str]
"""Network namespace, local endpoint and peer endpoint."""

_PARTS = 60  # of a pass
_KeyT = TypeVar("_KeyT")


class _Pass(Generic[_KeyT]):
    """The keys that are left of a pass, the next one last."""

    def __init__(self, keys: MutableSequence[_KeyT]) -> None:
        self.keys = keys
        self._total = len(keys)

    def take(self, left: float) -> Sequence[_KeyT]:
        """Return the next keys, so that this share of the pass is left."""
        kept = math.ceil(self._total * left)
        taken = self.keys[kept:]
        del self.keys[kept:]
        return taken


class Repeats:
    """The current pass. The first begins with the first report, and has no keys."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._began_ns: int | None = None
        self._ids = _Pass[int](array("Q"))  # 8 bytes per connection, reckoned in CONNECTION_BYTES
        self._listed = _Pass[SocketEnds]([])

    def due(
        self, newest: Iterable[int], listed: Collection[SocketEnds], now_ns: int
    ) -> tuple[Sequence[int], Sequence[SocketEnds]]:
        """Return the keys of connections that this report repeats; some may have ended.

        newest, listed: all keys, for the next pass; `newest` begins with that of the newest connection.
        """
        if self._began_ns is None:
            self._began_ns = now_ns
        passed = math.floor(_PARTS * (now_ns - self._began_ns) / 1e9 / self._interval_s)
        left = max(0.0, 1 - passed / _PARTS)
        due = self._ids.take(left), self._listed.take(left)
        if not left:
            self._began_ns = now_ns
            self._ids = _Pass(array("Q", [*newest]))
            self._listed = _Pass([*listed][::-1])
        elif len(self._listed.keys) > 2 * len(listed):
            # Listed connections take no memory in the kernel: that of one such key is reckoned there.
            self._listed.keys = [ends for ends in self._listed.keys if ends in listed]
        return due
