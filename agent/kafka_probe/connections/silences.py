"""Computes for how long connections have been silent, by the times that the kernel keeps of each that it follows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.sample import CONNECTION_HEAD
from kafka_probe.connections.connection import Connection
from kafka_probe.events import SilenceFacts

HeadsOf = Callable[[Collection[int]], npt.NDArray[Any]]
"""Returns what the kernel keeps of connections, by its ids, (n,) CONNECTION_HEAD."""


def no_heads(_: Collection[int]) -> npt.NDArray[Any]:
    """Return nothing, as without the kernel."""
    return np.empty(0, CONNECTION_HEAD)


class Silences:
    """The times of the last payload and the longest silence of connections. heads: (n,) CONNECTION_HEAD."""

    def __init__(self, heads: npt.NDArray[Any]) -> None:
        self._heads = np.sort(heads, order="conn")

    def facts(self, connection: Connection, until_ns: int) -> SilenceFacts:
        """Return the silences of a connection until a time; none if the kernel does not follow it.

        A connection without payload so far has been silent since the agent saw or listed it.
        """
        conn = connection.identity.conn
        place = np.searchsorted(self._heads["conn"], np.uint64(conn))
        longest_ns, last_ns = 0, connection.opened_ns
        if place < len(self._heads) and self._heads["conn"][place] == conn:
            _, longest_ns, *moved_ns = self._heads[place].tolist()
            last_ns = max(last_ns, *moved_ns)
        elif connection.found != "listed":
            return {}
        silence_ns = max(0, until_ns - last_ns)
        return {"present_silence_us": silence_ns // 1000, "longest_silence_us": max(longest_ns, silence_ns) // 1000}
