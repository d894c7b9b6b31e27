"""A connection as people read it: its frames in order, each request with its response, with pauses and its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from kafka_probe.conversations.copied_frames import NO_API, CopiedFrame
from kafka_probe.conversations.wording import with_contents, words

SILENCE_NS = 1_000_000_000
"""A pause from this length on is shown."""
INDENT = " " * 17
CLIENT = "client "
"""The beginning of the line that names a connection's client: no name from the wire can pass for another line."""
COLUMNS = (
    *("ts", "node", "side", "client", "local", "peer", "flow_id", "api", "api_version", "correlation_id"),
    *("direction", "frame_bytes", "latency_us", "contents"),
)
"""The values of a frame in a row."""
_MOST_WAITING = 1024  # requests without a response that are held to be shown with it


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """An end of a connection, with its client and the process that owns it, as far as they are known."""

    agent_id: str | None
    conn_id: str | None
    flow_id: str | None
    local: str | None
    peer: str | None
    client_id: str | None
    software: str | None
    owner: str | None


class Conversation:
    """Takes the frames of one end of a connection in their order, and yields the lines that show them.

    A request has a line with its time, and its response one with the time that it took. Both are yielded as soon as the
    response is there. Kafka answers in order: what was asked before an answered request has no response any more.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._waiting: deque[CopiedFrame] = deque()
        self._before_ns: int | None = None

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for their response."""
        return len(self._waiting)

    def add(self, frame: CopiedFrame) -> Iterator[str]:
        """Yield the lines of the requests that are complete with this frame."""
        if not frame.response:
            self._waiting.append(frame)
            while self._waiting and (len(self._waiting) > _MOST_WAITING or self._waiting[0].facts.acks == 0):
                yield from self._lines(self._waiting.popleft(), None)
            return
        correlation_id = frame.first.correlation_id
        request = next((each for each in self._waiting if each.first.correlation_id == correlation_id), None)
        while request and self._waiting[0] is not request:
            yield from self._lines(self._waiting.popleft(), None)
        yield from self._lines(self._waiting.popleft() if request else None, frame)

    def waiting_since(self, until_ns: int) -> Iterator[str]:
        """Yield the lines of requests sent until then without a response. Later responses have lines of their own."""
        while self._waiting and self._waiting[0].first.monotonic_ns <= until_ns:
            yield from self._lines(self._waiting.popleft(), None, without="no response yet")

    def rest(self) -> Iterator[str]:
        """Yield the lines of all requests without a response."""
        while self._waiting:
            yield from self._lines(self._waiting.popleft(), None)

    def _lines(
        self, request: CopiedFrame | None, response: CopiedFrame | None, without: str = "no response seen"
    ) -> Iterator[str]:
        frames = [frame for frame in (request, response) if frame]
        begin_ns, end_ns = frames[0].first.monotonic_ns, frames[-1].first.monotonic_ns
        if self._before_ns is not None and begin_ns - self._before_ns >= SILENCE_NS:
            yield f"{INDENT}{(begin_ns - self._before_ns) / 1e9:.1f} s of silence"
        self._before_ns = max(self._before_ns or 0, end_ns)
        if request:
            yield f"{clock(request)}  {self._described(title(request), request)}"
        if request and response:
            took, size = milliseconds(response.first.latency_us), response.first.frame_bytes
            yield f"{INDENT}{self._described(f'response after {took}, {size} bytes', response)}"
        elif response:
            yield f"{clock(response)}  {self._described(title(response), response)}"
        elif request and request.facts.acks != 0:
            yield f"{INDENT}{without}"

    def _described(self, title: str, frame: CopiedFrame) -> str:
        return with_contents(title, words(frame, verbose=self._verbose))


def lines(frames: Iterable[CopiedFrame], *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of a conversation that is over."""
    conversation = Conversation(verbose=verbose)
    for frame in frames:
        yield from conversation.add(frame)
    yield from conversation.rest()


def heading(end: ConnectionEnd, side: str | None, node: str | None) -> tuple[str, str]:
    """Return two lines that introduce an end of a connection: its client with its process, and its addresses."""
    software = f" ({end.software})" if end.software else ""
    return (
        f"{CLIENT}{end.client_id or 'without id'}{software}, {end.owner or 'an unknown process'}",
        f"{end.local or 'unknown'} to {end.peer or 'unknown'}, seen at the {side}'s end on {node}, flow {end.flow_id}",
    )


def reminder(end: ConnectionEnd, side: str | None) -> str:
    """Return a line that names an end of a connection that was introduced before."""
    return f"{CLIENT}{end.client_id or 'without id'}, {end.local or 'unknown'} to {end.peer or 'unknown'}, {side}'s end"


def closing(side: str, closed_by: str, how: str, idle_us: int | None) -> str:
    """Return the line about the end of a connection, from the fields of `close`."""
    far = "client" if side == "server" else "server"
    idle = f" after {milliseconds(idle_us)} of silence" if idle_us is not None else ""
    who = {"local": f"by the {side} ({how})", "peer": f"by the {far} ({how})"}.get(closed_by, "by an unknown end")
    return f"{INDENT}closed {who}{idle}"


def row(frame: CopiedFrame, end: ConnectionEnd | None) -> dict[str, object]:
    """Return a frame as its values of COLUMNS."""
    first = frame.first
    values = (
        datetime.fromtimestamp(first.ts_us / 1e6, UTC).isoformat(timespec="microseconds"),
        *(first.node, first.side),
        *((end.client_id, end.local, end.peer) if end else (None, None, None)),
        *(first.flow_id, frame.api, first.api_version, first.correlation_id),
        "response" if frame.response else "request",
        *(first.frame_bytes, first.latency_us if frame.response else None),
        words(frame, verbose=True),
    )
    return dict(zip(COLUMNS, values, strict=True))


def title(frame: CopiedFrame) -> str:
    """Return API, version, correlation id and size of a frame, and the time that a response took."""
    first = frame.first
    known = f"{frame.api} {first.api_version} #{first.correlation_id}, {first.frame_bytes} bytes"
    if not frame.response:
        return known
    if first.api_key == NO_API:
        return f"response to a request that was not seen, #{first.correlation_id}, {first.frame_bytes} bytes"
    return f"response after {milliseconds(first.latency_us)} to {known}"


def clock(frame: CopiedFrame) -> str:
    """Return the local time of a frame, with microseconds."""
    return datetime.fromtimestamp(frame.first.ts_us / 1e6).astimezone().strftime("%H:%M:%S.%f")


def milliseconds(us: int) -> str:
    """Return a duration as people write it."""
    return f"{us / 1000:.1f} ms" if us < 1_000_000 else f"{us / 1e6:.1f} s"
