"""Builds an agent that is fed samples instead of reading a ring, and sinks that keep its events."""

from __future__ import annotations

import time
from base64 import b64decode
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from kafka_probe.agent import Agent
from kafka_probe.config import Config
from kafka_probe.events import Event
from kafka_probe.setting_types import ExchangeSelection
from tests.builders.event_schema import assert_valid
from tests.builders.samples import Samples, stream

SECOND_NS = 10**9


class Kept:
    """A sink that keeps its events."""

    def __init__(self) -> None:
        self.parts: list[list[dict[str, Any]]] = []

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for part in self.parts for event in part]

    def send(self, events: Sequence[Event]) -> None:
        self.parts.append([dict(event) for event in events])

    def close(self, timeout_s: float) -> None:
        """Do nothing: no event waits."""

    def losses(self) -> Mapping[str, int]:
        return {"sink_refused": 0}

    def counters(self) -> Mapping[str, int]:
        return {"sink_events": len(self.events)}

    def trouble(self) -> str | None:
        return None


class KeptHere(Kept):
    """A local sink that keeps its events. lost: how many events it counts as lost."""

    lost = 0

    def losses(self) -> Mapping[str, int]:
        return {"server_behind": self.lost}


class Fed:
    """An agent that is given samples instead of a ring. archive: settings of its archive; None: it has none."""

    def __init__(
        self, requests: str = "off", cpu_limit: float | None = None, archive: Mapping[str, Any] | None = None
    ) -> None:
        self.sink, self.local_sink, self.archive_sink = Kept(), KeptHere(), Kept()
        selection = ExchangeSelection.parse(requests)
        settings: dict[str, Any] = {"node": "node-1", "requests": selection, "cpu_limit": cpu_limit}
        config = Config(**settings, **(archive or {}))
        archive_sink = None if archive is None else self.archive_sink
        self.agent = Agent(config, self.sink, [self.local_sink], archive_sink=archive_sink)
        self.processor, self.reporter = self.agent._processor, self.agent._reporter

    def see(self, *samples: Samples) -> None:
        batch = stream(*samples)
        self.processor.record(batch)
        for portion in self.processor.split(batch):
            self.processor.consume(portion)
            self.reporter.hand_on()

    def report(self) -> None:
        now = time.monotonic_ns()
        deque(self.reporter.report(now - SECOND_NS, now, now), maxlen=0)

    def archived(self) -> list[dict[str, Any]]:
        """Return all samples in the archive, as dictionaries with their bytes, and the side and ids of the end."""
        return [sample for event in self.archive_sink.events for sample in samples_of(event)]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        for event in self.sink.events:
            assert_valid(event)
        return [event for event in self.sink.events if kind in (None, event["kind"])]


def samples_of(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the samples of a valid `frames` event."""
    assert_valid(event)
    columns, samples = event["samples"], []
    for values in zip(*columns.values(), strict=True):
        sample = dict(zip(columns, values, strict=True))
        samples.append({**sample, **event["ends"][sample["end"]], "data": b64decode(sample["data"], validate=True)})
    return samples
