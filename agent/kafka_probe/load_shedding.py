"""Decides how much detail the agent reports: which requests become events, and whether flows name their topics.

While the capture thread takes more CPU time than its limit, this module leaves out detail: first `request` events,
then topics. Detail returns when the CPU time allows. Counts are never left out, and neither are the events of requests
that change a cluster or the members of a group: `connections/exchange.py` has limits for them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

from kafka_probe.connections.frame_reader import Frames
from kafka_probe.events import RequestEvent
from kafka_probe.protocol.administration import ADMINISTRATION
from kafka_probe.protocol.membership import GROUP_CHANGES
from kafka_probe.setting_types import ExchangeSelection

LOSSES = {
    "request_shed": "requests not considered for events, because the capture thread took more CPU than `--cpu-limit`",
}
# Detail returns after _CALM_INTERVALS in a row below half of the limit. Each return doubles the number, up to
# _MOST_CALM_INTERVALS; it is reset once the load stays low with full detail. Detail also returns after
# _MOST_CALM_INTERVALS in a row below the limit: a load between half and all of the limit must not disable it forever.
_CALM_INTERVALS, _MOST_CALM_INTERVALS = 3, 96
_NEVER_SHED = ADMINISTRATION | GROUP_CHANGES

log = logging.getLogger(__name__)


class LoadShedding:
    """Holds the level of detail. requests: exchanges that become events. cpu_limit: share of a core; None: no limit."""

    def __init__(self, requests: ExchangeSelection, cpu_limit: float | None) -> None:
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self._seen = 0
        self.reconfigure(requests, cpu_limit)

    def reconfigure(self, requests: ExchangeSelection, cpu_limit: float | None) -> None:
        """Take other settings and return to full detail."""
        self._requests = requests
        self._limit = cpu_limit
        self._steps = ("topics",) if requests.which == "off" else ("requests", "topics")
        self._taken = self._calm = self._below = 0
        self._calm_intervals = _CALM_INTERVALS

    @property
    def shed(self) -> str | None:
        """Return the detail that is left out, or None: `requests`, or `topics`, which includes requests."""
        return self._steps[self._taken - 1] if self._taken else None

    @property
    def requests(self) -> bool:
        """Return True if requests of all APIs may become events."""
        return self._requests.which != "off" and not self._taken

    @property
    def topics(self) -> bool:
        """Return True if flows name their topics."""
        return self.shed != "topics"

    def adapt(self, cpu_share: float) -> None:
        """Decide from the last interval's share of a core what the next interval leaves out."""
        if self._limit is None:
            return
        if cpu_share > self._limit:
            self._calm = self._below = 0
            if self._taken < len(self._steps):
                self._taken += 1
                log.warning(
                    "CPU use of %.1f %% of a core exceeds --cpu-limit; leaving out %s.", 100 * cpu_share, self.shed
                )
            return
        self._calm = self._calm + 1 if 2 * cpu_share < self._limit else 0
        self._below += 1
        if self._calm < self._calm_intervals and self._below < _MOST_CALM_INTERVALS:
            return
        self._calm = self._below = 0
        if self._taken:
            log.info("CPU use is %.1f %% of a core; including %s again.", 100 * cpu_share, self.shed)
            self._taken -= 1
            self._calm_intervals = min(2 * self._calm_intervals, _MOST_CALM_INTERVALS)
        else:
            self._calm_intervals = _CALM_INTERVALS

    def skip(self, batch: Iterable[Frames]) -> None:
        """Count the responses of a batch that become no events because of the CPU limit."""
        if self._requests.which != "off":
            left_out = (frames for frames in batch if frames.shape.facts.api_key not in _NEVER_SHED)
            self.losses["request_shed"] += sum(len(frames.index) for frames in left_out if frames.shape.facts.response)

    def wanted(self, events: Iterable[RequestEvent]) -> Iterator[RequestEvent]:
        """Return the events that the settings select, and those of changes of the cluster and of groups."""
        return filter(self._wants, events)

    def _wants(self, event: RequestEvent) -> bool:
        if event["api_key"] in ADMINISTRATION or "membership" in event:
            return True
        if self._requests.which == "one_in":
            self._seen += 1
            return self._seen % self._requests.one_in == 0
        return self._requests.chooses(failed=bool(event["errors"]), latency_us=event["latency_us"])
