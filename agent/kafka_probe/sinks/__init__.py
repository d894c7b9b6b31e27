"""Where events go: the `Sink` seam and its two ends, `kafka` and `stdout`.

A sink takes events from the capture loop without ever making it wait, keeps at most a fixed number of bytes, and counts
by reason every event that it could not deliver. It never changes an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Event = Mapping[str, object]


class Sink(Protocol):
    """A destination of events, each a mapping as in `kafka_probe.events`."""

    def send(self, events: Sequence[Event]) -> None:
        """Take events over, in order. Never blocks and never raises: what does not fit is dropped and counted."""

    def close(self, timeout_s: float) -> None:
        """Deliver what waits for at most `timeout_s` seconds, count what is left as lost, and stop. Idempotent."""

    def losses(self) -> Mapping[str, int]:
        """Events lost since the start, by reason; every reason is there from the start, with 0."""

    def counters(self) -> Mapping[str, int]:
        """What was delivered since the start."""

    def trouble(self) -> str | None:
        """Why nothing is delivered now, in words that anybody may read; None: events are taken."""
