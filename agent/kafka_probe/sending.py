"""Numbers events and passes them to the sinks, in parts of bounded size."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from kafka_probe import server
from kafka_probe.events import SCHEMA_VERSION, Event, Origin
from kafka_probe.memory import IN_HAND_BYTES, event_bytes
from kafka_probe.sinks import Sink
from kafka_probe.sinks.outbox import encode


class Sender:
    """Adds the fields that all events of an agent share, and passes each part of the events to all sinks.

    sink: the destination, whose losses are missing in the topic. local: sinks that show the same events on this host.
    """

    def __init__(self, node: str, sink: Sink, local: Sequence[Sink] = ()) -> None:
        self.agent_id = uuid.uuid4().hex
        self.sent = 0  # events
        self._node = node
        self._sink = sink
        self._local = local

    def send(self, events: Iterable[Event]) -> None:
        """Send all events now."""
        for _ in self.parts(events):
            pass

    def parts(self, events: Iterable[Event | None]) -> Iterator[None]:
        """Send events in parts of at most IN_HAND_BYTES or one larger event; yield between parts, and at each None."""
        part: list[Event] = []
        in_hand = 0
        for event in events:
            if event is None:
                yield
                continue
            size = event_bytes(event) + len(encode(event))  # escapes may make names six times as long in JSON
            if part and in_hand + size > IN_HAND_BYTES:
                self._pass_on(part)
                part, in_hand = [], 0
                yield
            part.append(event)
            in_hand += size
        if part:
            self._pass_on(part)

    def lost(self) -> int:
        """Return how many events are missing at the destination."""
        return sum(self._sink.losses().values())

    def losses(self) -> dict[str, int]:
        """Return the losses of all sinks by reason, those of an HTTP server also without one."""
        absent = dict.fromkeys(server.LOSSES, 0)
        return absent | {reason: n for sink in (*self._local, self._sink) for reason, n in sink.losses().items()}

    def counters(self) -> dict[str, int]:
        """Return the number of events, and the counters of the destination."""
        return {"events": self.sent, **self._sink.counters()}

    def _pass_on(self, events: list[Event]) -> None:
        origin: Origin = {"v": SCHEMA_VERSION, "node": self._node, "agent_id": self.agent_id}
        # The kind comes early in the line: the pipeline leaves out other kinds by it.
        numbered = [
            cast("Event", {**origin, "seq": seq, "kind": event["kind"], **event})
            for seq, event in enumerate(events, self.sent)
        ]
        self.sent += len(numbered)
        for sink in (self._sink, *self._local):
            sink.send(numbered)
