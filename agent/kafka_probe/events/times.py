"""Times of events: converts the kernel's clock to µs since epoch, once, where an event is made."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple, Self


@dataclass(frozen=True, slots=True)
class WallClock:
    """The time since epoch minus CLOCK_MONOTONIC, which stands still while the host is suspended."""

    offset_ns: int

    @classmethod
    def now(cls) -> Self:
        """Return the difference between both clocks at this moment."""
        # Take the largest difference: another process may run between the two readings, which makes it smaller.
        return cls(max(time.time_ns() - time.monotonic_ns() for _ in range(3)))

    def epoch_us(self, monotonic_ns: int) -> int:
        """Return a time of CLOCK_MONOTONIC as µs since epoch."""
        return (monotonic_ns + self.offset_ns) // 1000


class Interval(NamedTuple):
    """The interval that an event reports, in µs since epoch."""

    since_us: int
    until_us: int
