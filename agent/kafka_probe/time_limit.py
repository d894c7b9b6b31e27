"""The time in which a report is sent, so that intervals keep their length however much there is to report."""

from __future__ import annotations

import math
import time
from enum import Enum


class ReportPart(Enum):
    """A part of a report. Its value is the share of the time that has passed when no more of the part is sent.

    Flows that are left are counted by side and API only. Resets, opens and closes that are left are sent by the next
    report.
    """

    RESETS = 0.1
    OPENS = 0.25
    FLOWS = 0.75
    CLOSES = 1.0


class TimeLimit:
    """The time of one report. It begins with the first call of `is_over`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began_s: float | None = None

    def is_over(self, part: ReportPart) -> bool:
        """Return True if no more of a part is to be sent."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s >= self._seconds * part.value


NO_LIMIT = TimeLimit(math.inf)
