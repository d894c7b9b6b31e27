"""What the server shows: its own sums, and what it asks of the agent and the sink. Belongs to the server's thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_probe.connections.tracker import Connection
from kafka_probe.server.client_table import ClientTable
from kafka_probe.server.traffic import Traffic
from kafka_probe.sinks import Sink

STALLED_S = 30.0
"""The capture loop turns every second; only a report of very many connections takes longer."""


class Watched(Protocol):
    """An agent, as other threads see it."""

    turned_s: float | None

    def connections(self) -> tuple[Connection, ...]:
        """The open connections."""


@dataclass(slots=True)
class View:
    """All that can be asked for. handed_over: how often it was given events."""

    agent: Watched
    sink: Sink
    traffic: Traffic
    clients: ClientTable = field(default_factory=ClientTable)
    started_s: float = field(default_factory=time.time)
    handed_over: int = 0

    def add(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Take the agent's events, in their order."""
        self.handed_over += 1
        self.traffic.add(events)
        self.clients.add(events)

    def stalled(self) -> str | None:
        """Why the agent is not alive, in words; None: it is, or it is still starting."""
        turned_s = self.agent.turned_s
        silent_s = 0.0 if turned_s is None else time.monotonic() - turned_s
        return f"the capture loop has not turned for {silent_s:.0f} s" if silent_s > STALLED_S else None

    def unready(self) -> str | None:
        """Why the agent is of no use now, in words; None: it captures, and what it sees is taken."""
        if self.agent.turned_s is None:
            return "not attached to the kernel yet"
        return self.stalled() or self.sink.trouble()
