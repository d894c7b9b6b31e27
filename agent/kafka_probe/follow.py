"""Shows conversations for `kafka-probe follow`: the frames of chosen connections, as people read them, while they pass.

Once per interval each connection with new frames gets a block of lines. A request whose answer takes longer has its
line before the answer, which then has one of its own.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, cast

from kafka_probe.conversations.conversation import SILENCE_NS, ConnectionEnd, Conversation, closing, heading, row
from kafka_probe.conversations.frames import CopiedFrame, CopiedSample, Joiner
from kafka_probe.conversations.terminal import Terminal
from kafka_probe.events import OWNER_NAMES
from kafka_probe.setting_types import RequestEvents
from kafka_probe.sinks.stdout import STDOUT, StdoutSink
from kafka_probe.text import MESSAGE_LIMIT, as_json, printable

if TYPE_CHECKING:
    from typing import Any

    from kafka_probe.config import Config
    from kafka_probe.connections.connection import Connection
    from kafka_probe.events import CloseEvent, ConnectionFacts, Event, FramesEvent

BYTES_PER_S = 8 << 20
"""Most bytes of frames per second, of all connections; `archive_rate` counts samples beyond it."""
MOST_SAMPLES = 1 << 15
"""Most samples of frames in an interval; a line has the number of further ones."""
MOST_FOLLOWED = 4096
"""Most connections whose state is kept; the one that was silent longest leaves."""
_MOST_OTHERS = 1 << 17
_INTERVALS_WAITED = 10  # for the facts of a connection that has frames
_QUIET_INTERVALS = 5
_COLUMNS = ("end", "ns", *CopiedSample._fields[CopiedSample._fields.index("tcp_seq") :])


@dataclass(frozen=True, slots=True)
class Choice:
    """The connections to follow: all conditions that are not None have to match. Patterns are as in shells."""

    client: str | None = None
    workload: str | None = None
    pid: int | None = None
    address: str | None = None
    connection: str | None = None

    def matches(self, facts: ConnectionFacts | None) -> bool:
        """Return True if the connection is one of them. Nothing is known of it if `facts` is None."""
        if facts is None:
            return self == Choice()
        owner = facts["workload"]
        names = (owner[name] for name in OWNER_NAMES)
        return (
            _is_like(self.client, facts["client"]["id"])
            and _is_like(self.workload, *names)
            and self.pid in (None, owner["pid"])
            and self.connection in (None, facts["conn_id"], facts["flow_id"])
            and (not self.address or any(_has(self.address, end) for end in (facts["local"], facts["peer"])))
        )


def _is_like(pattern: str | None, *names: str | None) -> bool:
    return not pattern or any(name is not None and fnmatchcase(name, pattern) for name in names)


def _has(address: str, end: str | None) -> bool:
    """Return True if `end` is the address, which may lack the port."""
    host = (end or "").rpartition(":")[0]
    return address in (end, host, host.strip("[]"))


@dataclass(slots=True)
class _Followed:
    """The state of a connection: samples that wait for the interval's end, and whether its name was printed."""

    first: CopiedSample
    conversation: Conversation
    joiner: Joiner = field(default_factory=Joiner)
    samples: list[CopiedSample] = field(default_factory=list)
    end: ConnectionEnd | None = None
    waited: int = 0
    introduced: bool = False

    @property
    def since_ns(self) -> int:
        """Return the time of the first sample of the interval, ns of CLOCK_MONOTONIC; 0 without samples."""
        return self.samples[0].ns if self.samples else 0


class FollowSink(StdoutSink):
    """Prints the conversations of chosen connections, or their frames as JSON lines.

    `connections`, if set, returns the open connections. notice: gets a sentence if there is nothing to show.
    """

    def __init__(
        self,
        choice: Choice,
        *,
        as_json: bool = False,
        verbose: bool = False,
        notice: Callable[[str], None] = lambda _: None,
        descriptor: int = STDOUT,
    ) -> None:
        self.connections: Callable[[], Sequence[Connection]] = lambda: ()
        self._choice = choice
        self._as_json = as_json
        self._verbose = verbose
        self._notice = notice
        self._quiet_intervals: int | None = 0  # None: something was shown, or the notice was given
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        self._others: set[str] = set()  # connections that do not match, and whose client id is known
        self._closes: dict[str, CloseEvent] = {}
        self._held = self._left_out = 0  # samples of this interval
        self._last: str | None = None  # the connection whose lines were printed last
        self._terminal = Terminal(descriptor)
        super().__init__(descriptor=descriptor)

    def send(self, events: Sequence[Event]) -> None:
        for event in events:
            match event["kind"]:
                case "frames":
                    self._hold(event)
                case "close":
                    self._closes[event["conn_id"] or ""] = event
                case "agent":
                    self._end_interval()

    def _hold(self, event: FramesEvent) -> None:
        """Keep the samples until the end of the interval."""
        ends = event["ends"]
        columns = cast("dict[str, list[Any]]", event["samples"])
        for index, ns, *values, data in zip(*(columns[name] for name in _COLUMNS), strict=True):
            conn_id = ends[index]["conn_id"]
            if conn_id in self._others:
                continue
            if self._held == MOST_SAMPLES:
                self._left_out += 1
                continue
            self._held += 1
            origin = (
                event["node"],
                event["agent_id"],
                conn_id,
                ends[index]["flow_id"],
                event["copy_rules"],
                ends[index]["side"],
            )
            sample = CopiedSample._make(((ns + event["wall_ns"]) // 1000, *origin, ns, *values, b64decode(data)))
            if conn_id not in self._followed:
                self._followed[conn_id] = _Followed(sample, Conversation(verbose=self._verbose))
            self._followed[conn_id].samples.append(sample)
            self._followed.move_to_end(conn_id)

    def _end_interval(self) -> None:
        self._identify()
        lines = [*self._interval()]
        if self._left_out:
            lines.append(f"{self._left_out} more parts of frames left out: narrow the choice of connections")
        if not self._as_json:
            lines = [self._terminal.fitted(printable(line, MESSAGE_LIMIT)) for line in lines]
        self.write([f"{line}\n".encode() for line in lines])
        self._others.difference_update(self._closes)
        if len(self._others) > _MOST_OTHERS:
            self._others.clear()
        while len(self._followed) > MOST_FOLLOWED:
            self._followed.popitem(last=False)
        self._closes.clear()
        self._held = self._left_out = 0
        if lines:
            self._quiet_intervals = None
        elif self._quiet_intervals is not None:
            self._quiet_intervals += 1
            if self._quiet_intervals == _QUIET_INTERVALS:
                self._notice(self._nothing())
                self._quiet_intervals = None

    def _identify(self) -> None:
        """Give connections with frames their facts, and forget those that do not match."""
        unknown = {conn_id: one for conn_id, one in self._followed.items() if one.end is None}
        if not unknown:
            return
        known: dict[str, ConnectionFacts] = {
            conn_id: one.facts() for one in self.connections() if (conn_id := f"{one.conn_id:016x}") in unknown
        }
        for conn_id, followed in unknown.items():
            facts = self._closes.get(conn_id) or known.get(conn_id)
            followed.waited += 1
            if facts is None and followed.waited < _INTERVALS_WAITED:
                continue
            if self._choice.matches(facts):
                followed.end = _end_of(facts, followed.first)
                continue
            del self._followed[conn_id]
            if facts and facts["client"]["id"] is not None:
                self._others.add(conn_id)

    def _interval(self) -> Iterator[str]:
        """Yield the lines of all connections that have new frames, or an end, since the interval before."""
        for conn_id, followed in sorted(self._followed.items(), key=lambda item: item[1].since_ns):
            if followed.end is None:
                continue
            closed = self._closes.get(conn_id)
            samples, followed.samples = followed.samples, []
            frames = [frame for sample in samples for frame in followed.joiner.add(sample)]
            if closed:
                frames += followed.joiner.rest()
                del self._followed[conn_id]
            if self._as_json:
                yield from (as_json(row(frame, followed.end)).decode() for frame in frames)
            elif lines := [*_lines(followed.conversation, frames, closed)]:
                if not followed.introduced:
                    yield from heading(followed.end, followed.first.side, followed.first.node)
                elif self._last != conn_id:
                    yield heading(followed.end, followed.first.side, followed.first.node)[0]
                followed.introduced, self._last = True, conn_id
                yield from lines

    def _nothing(self) -> str:
        every = [connection for connection in self.connections() if not connection.internal]
        matching = [connection for connection in every if self._choice.matches(connection.facts())]
        tls = sum(connection.opaque == "tls" for connection in matching)
        return (
            f"No frames so far. {len(every)} connections are open, of which {len(matching)} match; {tls} of these are "
            "TLS and not decoded."
        )


def _lines(conversation: Conversation, frames: Sequence[CopiedFrame], closed: CloseEvent | None) -> Iterator[str]:
    for frame in frames:
        yield from conversation.add(frame)
    if closed:
        yield from conversation.rest()
        yield closing(closed["closed_by"], closed["how"], closed["idle_us"])
    else:
        yield from conversation.waiting_since(time.monotonic_ns() - SILENCE_NS)


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


def follow_settings(config: Config) -> Config:
    """Return the settings by which an agent sends all frames, within BYTES_PER_S."""
    every = {"archive": RequestEvents("all"), "archive_bytes_per_s": BYTES_PER_S, "recorder_bytes": 0}
    return config.model_copy(update=every)
