"""Finds the records that brokers refused: a Produce response has an error, or a close follows a Produce with acks=0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_probe.connections.frame_reader import Frames
from kafka_probe.connections.frames_by_connection import FramesByConnection
from kafka_probe.connections.last_produces import LastProduce, LastProduces
from kafka_probe.connections.refusals import Refusals, Sums
from kafka_probe.memory import DEFAULT, Bounds

LOSSES = {
    "refusal_unmatched": "Produce responses with an error, and closes right after a Produce with acks=0, whose request "
    "is not known: its records count as written",
}


class RefusedProduces:
    """Keeps the newest Produce requests of all connections until their broker may have refused them."""

    def __init__(self, bounds: Bounds = DEFAULT) -> None:
        self._unmatched_closes = 0
        last_bytes = bounds.produces_bytes // 4
        self._answered = Refusals(bounds.produces_bytes - last_bytes)
        self._last = LastProduces(last_bytes)

    @property
    def losses(self) -> Mapping[str, int]:
        """Return the number of refusals whose request is not known."""
        return {"refusal_unmatched": self._answered.unmatched + self._unmatched_closes}

    @property
    def held_bytes(self) -> int:
        """Return the memory of the requests in bytes."""
        return self._answered.held_bytes + self._last.held_bytes

    def see(self, batch: Sequence[FramesByConnection], closing: Mapping[int, int]) -> None:
        """Keep the Produce requests of a batch.

        closing: connections that are closed after it and whose last request the broker may have refused, by the
        kernel's ids, and times of the closes, CLOCK_MONOTONIC in ns.
        """
        for conn, closed_ns in closing.items():
            self._last.close(conn, closed_ns)
        for grouped in batch:
            self._answered.see(grouped.frames)
            self._last.see(grouped, closing)

    def by_responses(self, frames: Frames) -> dict[int, Sums]:
        """Return what these responses refused, by the kernel's id of the connection; empty for other frames."""
        return self._answered.refused(frames)

    def by_close(self, conn: int, request_bytes: int) -> LastProduce | None:
        """Return the last Produce with acks=0 of a connection if it has this size; else count a loss."""
        last = self._last.take(conn)
        if last is None or last.frame_bytes != request_bytes:
            self._unmatched_closes += 1
            return None
        return last

    def forget(self, conn: int) -> None:
        """Drop the last Produce of a connection, by the kernel's id, except one that a close may have refused."""
        self._last.forget(conn)

    def settle(self, until_ns: int) -> None:
        """Drop the requests of closes up to this time, see pending_closes.py."""
        self._last.settle(until_ns)
