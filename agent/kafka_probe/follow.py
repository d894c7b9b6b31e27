"""Shows conversations for `kafka-probe follow`: the frames of chosen connections, as people read them, while they pass.

Once per interval each connection with new frames gets a block of lines. If a response takes more than a second, the
request is printed first and the response later, on a line of its own. Waiting frames take at most some 24 MiB: the part
of `--memory-limit` that is for the sinks of `run`.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from kafka_probe.conversations.conversation import (
    SILENCE_NS,
    ConnectionEnd,
    Conversation,
    closing,
    heading,
    reminder,
    row,
)
from kafka_probe.conversations.copied_frames import CopiedFrame, CopiedSample, Joiner
from kafka_probe.conversations.terminal import LINE_LIMIT, Terminal
from kafka_probe.errors import UsageError
from kafka_probe.setting_types import ArchiveFilter, ExchangeSelection
from kafka_probe.sinks.stdout import STDOUT, StdoutSink
from kafka_probe.text import as_json, printable

if TYPE_CHECKING:
    from typing import Any

    from kafka_probe.config import Config
    from kafka_probe.connections.connection import Connection
    from kafka_probe.events import CloseEvent, ConnectionFacts, Event, FramesEvent
    from kafka_probe.follow_packets import PacketStream

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
_OF_FRAMES = ("archive_rate", "ring_full", "peer_limited", "frame_incomplete", "frame_limit", "sink_buffer_full")


@dataclass(slots=True)
class _Followed:
    """The state of a connection: frames that wait for the interval's end, and whether it was introduced."""

    first: CopiedSample
    conversation: Conversation
    frames: deque[CopiedFrame] = field(default_factory=deque)
    end: ConnectionEnd | None = None
    waited: int = 0
    introduced: bool = False

    @property
    def since_ns(self) -> int:
        """Return the time of the first frame of the interval, ns of CLOCK_MONOTONIC; 0 without frames."""
        return self.frames[0].first.monotonic_ns if self.frames else 0


class FollowSink(StdoutSink):
    """Prints conversations, or their frames as JSON lines, or `packets` as a capture file.

    `connections`, if set, returns the open connections. notice: called with a sentence if frames are lost, or if there
    is nothing to show. ports: a text about the watched ports.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        verbose: bool = False,
        notice: Callable[[str], None] = lambda _: None,
        ports: str = "all ports",
        packets: PacketStream | None = None,
        descriptor: int = STDOUT,
    ) -> None:
        self.connections: Callable[[], Sequence[Connection]] = lambda: ()
        self._as_json = as_json
        self._verbose = verbose
        self._notice = notice
        self._ports = ports
        self._packets = packets
        self._quiet_intervals: int | None = 0  # None: something was shown, or the notice was given
        self._joiner = Joiner()
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        self._closes: dict[str, CloseEvent] = {}  # of followed connections, in this interval
        self._samples = self._left_out = 0  # of this interval
        self._lost: Mapping[str, int] = {}
        self._last: str | None = None  # the connection whose lines were printed last
        self._terminal = Terminal(descriptor)
        super().__init__(descriptor=descriptor, buffer_bytes=BUFFER_BYTES)
        if packets:
            self.write([packets.beginning()])

    def send(self, events: Sequence[Event]) -> None:
        for event in events:
            match event["kind"]:
                case "frames":
                    self._take(event)
                case "open" if self._packets:
                    self._packets.note_open(event)
                case "close":
                    conn_id = event["conn_id"] or ""
                    if conn_id in self._followed:
                        self._closes[conn_id] = event
                case "agent":
                    self._end_interval(event["losses"])

    def close(self, timeout_s: float) -> None:
        self._print(self._interval(over=True))
        if self._packets:
            self._notice(self._packets.summary())
            self._packets = None
        super().close(timeout_s)

    def _take(self, event: FramesEvent) -> None:
        """Join the samples to frames, which wait for the end of the interval."""
        ends = event["ends"]
        columns = cast("dict[str, list[Any]]", event["samples"])
        for index, ns, *values, data in zip(*(columns[name] for name in _COLUMNS), strict=True):
            if self._samples == MOST_SAMPLES:
                self._left_out += 1
                continue
            self._samples += 1
            end = ends[index]
            origin = event["node"], event["agent_id"], end["conn_id"], end["flow_id"], event["copy_rules"], end["side"]
            sample = CopiedSample._make(((ns + event["wall_offset_ns"]) // 1000, *origin, ns, *values, b64decode(data)))
            if end["conn_id"] not in self._followed:
                self._followed[end["conn_id"]] = _Followed(sample, Conversation(verbose=self._verbose))
            self._followed.move_to_end(end["conn_id"])
            for frame in self._joiner.add(sample):  # of another connection, if unfinished frames exceed their bound
                if of_frame := self._followed.get(frame.first.conn_id or ""):
                    of_frame.frames.append(frame)

    def _end_interval(self, losses: Mapping[str, int]) -> None:
        self._identify()
        shown = self._print(self._interval())
        while len(self._followed) > MOST_FOLLOWED:
            conn_id, leaving = self._followed.popitem(last=False)
            unfinished = self._joiner.rest_of(leaving.first.agent_id, conn_id)
            if self._packets:
                self._packets.forget(conn_id)
            self._left_out += len(leaving.frames) + leaving.conversation.waiting + sum(1 for _ in unfinished)
        if self._packets and self._packets.full:
            self.on_closed()
        if self._left_out:
            self._notice(f"{self._left_out} frames or parts left out in this interval: choose fewer connections.")
        lost = [(name, losses.get(name, 0) - self._lost.get(name, 0)) for name in _OF_FRAMES]
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
        for conn_id, followed in unknown.items():
            facts = self._closes.get(conn_id) or known.get(conn_id)
            followed.waited += 1
            if facts or followed.waited == _INTERVALS_WAITED:
                followed.end = _end_of(facts, followed.first)

    def _interval(self, *, over: bool = False) -> Iterator[str | bytes]:
        """Yield the lines or packets of all connections that have new frames, or an end. over: no interval follows."""
        until_ns, until_s = time.monotonic_ns() - SILENCE_NS, time.thread_time() + RENDER_S
        for conn_id, followed in sorted(self._followed.items(), key=lambda item: item[1].since_ns):
            if over:
                followed.end = followed.end or _end_of(None, followed.first)
            if followed.end is None:
                continue
            closed = self._closes.pop(conn_id, None)
            if closed or over:
                followed.frames.extend(self._joiner.rest_of(followed.first.agent_id, conn_id))
            if closed:
                del self._followed[conn_id]
            frames = self._in_time(followed.frames, until_s)
            if self._packets:
                yield from self._packets.packets(followed.end, followed.first, frames, closed)
            elif self._as_json:
                yield from (as_json(row(frame, followed.end)).decode() for frame in frames)
            else:
                yield from self._block(conn_id, followed, _lines(followed.conversation, frames, closed, until_ns, over))
        self._closes.clear()

    def _in_time(self, frames: deque[CopiedFrame], until_s: float) -> Iterator[CopiedFrame]:
        """Take the frames; yield them until the thread's CPU time is over, and count the others as left out."""
        while frames:
            if time.thread_time() > until_s:
                self._left_out += len(frames)
                frames.clear()
                return
            yield frames.popleft()

    def _block(self, conn_id: str, followed: _Followed, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines below the name of their connection, if the line before is not one of it."""
        for line in lines:
            if followed.end and not followed.introduced:
                yield from heading(followed.end, followed.first.side, followed.first.node)
            elif followed.end and self._last != conn_id:
                yield reminder(followed.end, followed.first.side)
            followed.introduced, self._last = True, conn_id
            yield line

    def _print(self, output: Iterable[str | bytes]) -> bool:
        """Queue lines and packets; return True if there were any."""
        shown = False
        for part in output:
            shown = True
            if isinstance(part, str):
                fitted = part if self._as_json else self._terminal.fitted(printable(part, LINE_LIMIT))
                part = f"{fitted}\n".encode()
            self.write([part])
        return shown

    def _nothing(self) -> str:
        every = [connection for connection in self.connections() if not connection.internal]
        tls = sum(connection.opaque == "tls" for connection in every)
        return (
            f"No frames of the chosen connections so far. The command watches {self._ports}; --ports "
            f"adds others. {len(every)} connections are open there, of which {tls} use TLS, which is not decoded."
        )


def _lines(
    conversation: Conversation, frames: Iterable[CopiedFrame], closed: CloseEvent | None, until_ns: int, over: bool
) -> Iterator[str]:
    for frame in frames:
        yield from conversation.add(frame)
    if closed:
        yield from conversation.rest()
        yield closing(closed["side"], closed["closed_by"], closed["how"], closed["idle_us"])
    elif over:
        yield from conversation.rest()
    else:
        yield from conversation.waiting_since(until_ns)


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
