"""Collects the frames of chosen connections for `kafka-probe follow`, and writes them once per interval.

Each connection with new frames gets a block of lines. If a response takes more than a second, the request is printed
first and the response later, on a line of its own. Waiting frames take at most some 24 MiB: the part
of `--memory-limit` that is for the sinks of `run`.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from kafka_probe.conversations.conversation import ConnectionEnd
from kafka_probe.conversations.copied_frames import CopiedFrame, CopiedSample, Joiner
from kafka_probe.errors import UsageError
from kafka_probe.events import WallClock
from kafka_probe.follow_outputs import Followed, Output
from kafka_probe.setting_types import ArchiveFilter, ExchangeSelection
from kafka_probe.sinks.stdout import STDOUT, StdoutSink

if TYPE_CHECKING:
    from typing import Any

    from kafka_probe.config import Config
    from kafka_probe.connections.connection import Connection
    from kafka_probe.events import CloseEvent, ConnectionFacts, Event, FramesEvent

BYTES_PER_S = 4 << 20
"""Most bytes of frames per second; `archive_rate` counts samples beyond it."""
MOST_SAMPLES = 1 << 12
"""Most samples of frames in an interval: nobody reads more."""
RENDER_S = 0.2
"""Most CPU time of the capture thread per interval for lines, in seconds."""
BUFFER_BYTES = 4 << 20
"""Most bytes of lines that wait for the terminal."""
MOST_FOLLOWED = 4096
"""Most connections whose state is kept; the one that was silent longest is dropped first."""
_INTERVALS_WAITED = 10  # for the facts of a connection that has frames
_QUIET_INTERVALS = 5
_COLUMNS = ("end", "monotonic_ns", *CopiedSample._fields[CopiedSample._fields.index("tcp_seq") :])
_LOSSES = (
    *("archive_rate", "ring_full", "peer_limited", "frame_incomplete", "frame_limit"),
    *("sink_buffer_full", "sink_event_too_large"),
)


@dataclass(slots=True)
class _Collected:
    """The state of a connection: its first sample, frames that wait for the interval's end, and its end if known."""

    first: CopiedSample
    frames: deque[CopiedFrame] = field(default_factory=deque)
    end: ConnectionEnd | None = None
    intervals: int = 0

    @property
    def since_ns(self) -> int:
        """Return the time of the first frame of the interval, ns of CLOCK_MONOTONIC; 0 without frames."""
        return self.frames[0].first.monotonic_ns if self.frames else 0


class FollowSink(StdoutSink):
    """Writes frames of followed connections in a form of output.

    `connections`, if set, returns the open connections. notice: called with a sentence if frames are lost, or if there
    is nothing to show. ports: a text about the watched ports.
    """

    def __init__(
        self,
        output: Output,
        descriptor: int = STDOUT,
        *,
        notice: Callable[[str], None] = lambda _: None,
        ports: str = "all ports",
    ) -> None:
        super().__init__(descriptor=descriptor, buffer_bytes=BUFFER_BYTES)
        self.connections: Callable[[], Sequence[Connection]] = lambda: ()
        self._output = output
        self._notice = notice
        self._ports = ports
        self._begun = self._closed = False
        self._quiet_intervals: int | None = 0  # None: something was shown, or the notice was given
        self._joiner = Joiner()
        self._followed: OrderedDict[str, _Collected] = OrderedDict()
        self._closes: dict[str, CloseEvent] = {}  # of followed connections, in this interval
        self._samples = self._left_out = 0  # of this interval
        self._lost: Mapping[str, int] = {}

    def send(self, events: Sequence[Event]) -> None:
        self._begun = True
        for event in events:
            match event["kind"]:
                case "frames":
                    self._take(event)
                case "open":
                    self._output.note_open(event)
                case "close":
                    conn_id = event["conn_id"] or ""
                    if conn_id in self._followed:
                        self._closes[conn_id] = event
                case "agent":
                    self._end_interval(event["losses"])

    def close(self, timeout_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        if self._begun:
            self._write_interval(over=True)
            if self._left_out:
                self._notice(f"{self._left_out} frames or parts left out at the end.")
        super().close(timeout_s)
        if self._begun and (summary := self._output.summary()):
            lost = sum(self.losses().values())
            self._notice(f"{summary} {lost} parts of it could not be written." if lost else summary)

    def _take(self, event: FramesEvent) -> None:
        """Join the samples to frames, which wait for the end of the interval."""
        ends, clock = event["ends"], WallClock(event["wall_offset_ns"])
        columns = cast("dict[str, list[Any]]", event["samples"])
        for index, ns, *values, data in zip(*(columns[name] for name in _COLUMNS), strict=True):
            if self._samples == MOST_SAMPLES:
                self._left_out += 1
                continue
            self._samples += 1
            end = ends[index]
            origin = event["node"], event["agent_id"], end["conn_id"], end["flow_id"], event["copy_rules"], end["side"]
            sample = CopiedSample._make((clock.epoch_us(ns), *origin, ns, *values, b64decode(data)))
            if end["conn_id"] not in self._followed:
                self._followed[end["conn_id"]] = _Collected(sample)
            self._followed.move_to_end(end["conn_id"])
            for frame in self._joiner.add(sample):  # of another connection, if unfinished frames exceed their bound
                if of_frame := self._followed.get(frame.first.conn_id or ""):
                    of_frame.frames.append(frame)

    def _end_interval(self, losses: Mapping[str, int]) -> None:
        self._identify()
        shown = self._write_interval()
        while len(self._followed) > MOST_FOLLOWED:
            conn_id, leaving = self._followed.popitem(last=False)
            unfinished = self._joiner.rest_of(leaving.first.agent_id, conn_id)
            self._left_out += len(leaving.frames) + self._output.forget(conn_id) + sum(1 for _ in unfinished)
        if self._output.full:
            self.on_closed()
        if self._left_out:
            self._notice(f"{self._left_out} frames or parts left out in this interval: choose fewer connections.")
        lost = [(name, losses.get(name, 0) - self._lost.get(name, 0)) for name in _LOSSES]
        if any(count for _, count in lost):
            counted = ", ".join(f"{name} {count}" for name, count in lost if count)
            self._notice(f"Frames or responses may be missing, lost since the interval before: {counted}.")
        self._lost = losses
        self._samples = self._left_out = 0
        if shown:
            self._quiet_intervals = None
        elif self._quiet_intervals is not None:
            self._quiet_intervals += 1
            if self._quiet_intervals == _QUIET_INTERVALS:
                self._notice(self._nothing())
                self._quiet_intervals = None

    def _identify(self) -> None:
        """Find the facts of connections with frames: in their close, or among those that are open."""
        unknown = {conn_id: one for conn_id, one in self._followed.items() if one.end is None}
        if not unknown:
            return
        known: dict[str, ConnectionFacts] = {
            conn_id: one.facts() for one in self.connections() if (conn_id := f"{one.conn_id:016x}") in unknown
        }
        for conn_id, waiting in unknown.items():
            facts = self._closes.get(conn_id) or known.get(conn_id)
            waiting.intervals += 1
            if facts or waiting.intervals == _INTERVALS_WAITED:
                waiting.end = _end_of(facts, waiting.first)

    def _write_interval(self, *, over: bool = False) -> bool:
        """Queue the interval's output; return True if there is any. over: no interval follows."""
        until_s, shown = time.thread_time() + RENDER_S, False
        for conn_id, waiting in sorted(self._followed.items(), key=lambda item: item[1].since_ns):
            if over:
                waiting.end = waiting.end or _end_of(None, waiting.first)
            if waiting.end is None:
                continue
            close = self._closes.get(conn_id)
            if close:
                del self._followed[conn_id]
            ends = over or close is not None
            if ends:
                waiting.frames.extend(self._joiner.rest_of(waiting.first.agent_id, conn_id))
            frames = self._in_time(waiting.frames, until_s)
            for part in self._output.connection(Followed(waiting.first, waiting.end, frames, close, ends)):
                self.write([part])
                shown = True
        self._closes.clear()
        for part in self._output.end_interval():
            self.write([part])
        return shown

    def _in_time(self, frames: deque[CopiedFrame], until_s: float) -> Iterator[CopiedFrame]:
        """Take the frames; yield them until the thread's CPU time is over, and count the others as left out."""
        while frames:
            if time.thread_time() > until_s:
                self._left_out += len(frames)
                frames.clear()
                return
            yield frames.popleft()

    def _nothing(self) -> str:
        every = [connection for connection in self.connections() if not connection.internal]
        tls = sum(connection.opaque == "tls" for connection in every)
        return (
            f"No frames of the chosen connections so far. The command watches {self._ports}; --ports "
            f"adds others. {len(every)} connections are open there, of which {tls} use TLS, which is not decoded."
        )


def _end_of(facts: ConnectionFacts | None, first: CopiedSample) -> ConnectionEnd:
    ids = first.agent_id, first.conn_id, first.flow_id
    if facts is None:
        return ConnectionEnd(*ids, *[None] * 5)
    client, owner = facts["client"], facts["workload"]
    name = owner["pod"] or owner["container_name"] or owner["unit"] or owner["comm"]
    return ConnectionEnd(
        *ids,
        *(facts["local"], facts["peer"], client["id"]),
        " ".join(filter(None, (client["software_name"], client["software_version"]))) or None,
        f"{name} (process {owner['pid']})" if name else None,
    )


def followed_later(config: Config) -> Config:
    """Return the settings of an agent that sends no frames until `Agent.follow` chooses connections."""
    return config.model_copy(
        update={"archive": ExchangeSelection("off"), "archive_bytes_per_s": BYTES_PER_S, "recorder_bytes": 0}
    )


def follow_settings(config: Config, choice: Mapping[str, str | None]) -> Config:
    """Return the settings by which an agent sends all frames of the chosen connections, each second.

    choice: values for fields of ArchiveFilter; None is no condition.

    Raises:
        UsageError: a value is wrong.
    """
    try:
        wanted = ArchiveFilter.of({name: value for name, value in choice.items() if value})
    except ValueError as error:
        raise UsageError(f"Wrong choice of connections: {error}.") from None
    return config.model_copy(
        update={
            "archive": ExchangeSelection("all"),
            "archive_filter": wanted,
            "archive_bytes_per_s": BYTES_PER_S,
            "recorder_bytes": 0,
            "requests": ExchangeSelection("off"),
            "interval_s": 1.0,
        }
    )
