"""The data that the server shows: its own sums, and what it reads from the agent and the sink.

The data thread owns the sums. The HTTP thread reads only the state of agent and sink, and `handed_over`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.offsets import GroupLag
from kafka_probe.events import Event
from kafka_probe.server.client_table import ClientTable
from kafka_probe.server.label_tables import LabelTable
from kafka_probe.server.lag_table import LagTable
from kafka_probe.server.traffic import Traffic
from kafka_probe.sinks.sink import Sink

STALLED_S = 30.0
"""Seconds after which the capture loop counts as stalled.

It turns every second; only a report of very many connections takes longer.
"""


class Watched(Protocol):
    """The part of an agent that the server's threads read."""

    turned_s: float | None

    def connections(self) -> tuple[Connection, ...]:
        """Return the open connections."""

    def lags(self) -> Sequence[GroupLag]:
        """Return how far groups were behind at the end of the last interval."""


@dataclass(slots=True)
class View:
    """All data that clients can request. handed_over: number of calls of `add`."""

    agent: Watched
    sink: Sink
    traffic: Traffic
    clients: ClientTable = field(default_factory=ClientTable)
    started_s: float = field(default_factory=time.time)
    handed_over: int = 0
    lags: LagTable = field(init=False)

    def __post_init__(self) -> None:
        self.lags = LagTable(self.traffic.limit)

    def add(self, events: Sequence[Event]) -> None:
        """Add the agent's events in their order."""
        self.handed_over += 1
        self.traffic.add(events)
        self.clients.add(events)
        if any(event["kind"] == "agent" for event in events):
            self.lags.update(self.agent.lags())

    def tables(self) -> Mapping[str, LabelTable[Any] | LagTable]:
        """Return the tables of label sets by name."""
        return {**self.traffic.tables, "group_lags": self.lags}

    def stalled(self) -> str | None:
        """Return the reason why the agent is not alive; None if it is, or is still starting."""
        turned_s = self.agent.turned_s
        silent_s = 0.0 if turned_s is None else time.monotonic() - turned_s
        return f"the capture loop has not run for {silent_s:.0f} s" if silent_s > STALLED_S else None

    def unready(self) -> str | None:
        """Return the reason why the agent is not ready; None if it captures and its sink takes events."""
        if self.agent.turned_s is None:
            return "not attached to the kernel yet"
        return self.stalled() or self.sink.trouble()
