"""Numbers events and passes them to the sinks, in parts of bounded size."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from kafka_probe.events import SCHEMA_VERSION, Event, FramesEvent, Origin
from kafka_probe.memory import IN_HAND_BYTES, event_bytes
from kafka_probe.sinks.outbox import encode
from kafka_probe.sinks.sink import Sink

LOSSES = {
    "archive_sink_buffer_full": "events with frames beyond 4 MiB while the topic of frames was slow or unreachable",
    "archive_sink_event_too_large": "events with frames of more than 4 MiB: none should be as large",
    "archive_sink_refused": "events with frames that the topic of frames refused: see the log",
    "archive_sink_send_failed": "events with frames that could not be sent",
    "archive_sink_unsent_at_exit": "events with frames not delivered when the agent stopped: see `--flush-timeout-s`",
}


class Sender:
    """Adds the fields that all events of an agent share, and passes each part of the events to all sinks.

    sink: the destination, whose losses are missing in the topic. local: sinks that show the same events on this host.
    archive: the destination of `frames` events, which have numbers of their own.
    """

    def __init__(self, node: str, sink: Sink, local: Sequence[Sink] = (), archive: Sink | None = None) -> None:
        self.agent_id = uuid.uuid4().hex
        self.sent = 0  # events
        self._frames_sent = 0
        self._origin: Origin = {"v": SCHEMA_VERSION, "node": node, "agent_id": self.agent_id}
        self._sink = sink
        self._local = local
        self._archive = archive

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

    def send_frames(self, events: Iterable[FramesEvent]) -> None:
        """Send `frames` events now."""
        for event in events:
            if self._archive:
                self._archive.send([self._numbered(event, self._frames_sent)])
                self._frames_sent += 1

    def lost(self) -> int:
        """Return how many events are missing at the destination."""
        return sum(self._sink.losses().values())

    def losses(self) -> dict[str, int]:
        """Return the losses of all sinks by reason."""
        archive = None if self._archive is self._sink else self._archive
        of_archive = {f"archive_{reason}": n for reason, n in (archive.losses() if archive else {}).items()}
        losses = {reason: n for sink in (*self._local, self._sink) for reason, n in sink.losses().items()}
        return {reason: n for reason, n in of_archive.items() if reason in LOSSES} | losses

    def counters(self) -> dict[str, int]:
        """Return the number of events, and the counters of the destination."""
        return {"events": self.sent, **self._sink.counters()}

    def _pass_on(self, events: list[Event]) -> None:
        numbered = [self._numbered(event, seq) for seq, event in enumerate(events, self.sent)]
        self.sent += len(numbered)
        for sink in (self._sink, *self._local):
            sink.send(numbered)

    def _numbered(self, event: Event, seq: int) -> Event:
        # The kind comes early in the line: the pipeline leaves out other kinds by it.
        return cast("Event", {**self._origin, "seq": seq, "kind": event["kind"], **event})
