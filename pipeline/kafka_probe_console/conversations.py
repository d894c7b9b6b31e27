"""A connection as people read it: its frames in order, each request with its answer, with pauses and its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from kafka_probe_console.frames import ArchivedFrame
from kafka_probe_console.wording import words

SILENCE_NS = 1_000_000_000
"""A pause from this length on is shown."""
_INDENT = " " * 17
_MOST_WAITING = 4096  # requests without an answer that are held to be shown with it


@dataclass(slots=True)
class Pair:
    """A request with its answer; one of both may not have been seen."""

    request: ArchivedFrame | None
    response: ArchivedFrame | None = None

    @property
    def first(self) -> ArchivedFrame:
        frame = self.request or self.response
        assert frame is not None
        return frame

    @property
    def last(self) -> ArchivedFrame:
        frame = self.response or self.request
        assert frame is not None
        return frame


def pairs(frames: Iterable[ArchivedFrame]) -> Iterator[Pair]:
    """Yield the requests of one end of a connection in their order, each with its answer."""
    waiting: dict[int, Pair] = {}
    for frame in frames:
        correlation_id = frame.first.correlation_id
        if not frame.response:
            if correlation_id in waiting:
                yield waiting.pop(correlation_id)
            waiting[correlation_id] = Pair(frame)
        elif correlation_id in waiting:
            waiting[correlation_id].response = frame
        else:
            waiting[correlation_id] = Pair(None, frame)
        # Kafka answers in order: what was asked before an answered request has no answer any more.
        while waiting and (next(iter(waiting.values())).response or len(waiting) > _MOST_WAITING):
            yield waiting.pop(next(iter(waiting)))
    yield from waiting.values()


def lines(frames: Iterable[ArchivedFrame], *, verbose: bool = False) -> Iterator[str]:
    """Yield a line per frame: requests with their time, answers with the time that they took."""
    before_ns: int | None = None
    for pair in pairs(frames):
        request, response = pair.request, pair.response
        begin_ns = pair.first.first.ns
        if before_ns is not None and begin_ns - before_ns >= SILENCE_NS:
            yield f"{_INDENT}{(begin_ns - before_ns) / 1e9:.1f} s of silence"
        if request:
            yield f"{clock(request)}  {title(request)}: {words(request, verbose=verbose)}"
        if request and response:
            took, size = milliseconds(response.first.latency_us), response.first.frame_bytes
            yield f"{_INDENT}answer after {took}, {size} bytes: {words(response, verbose=verbose)}"
        elif response:
            yield f"{clock(response)}  answer to {title(response)}: {words(response, verbose=verbose)}"
        elif request and request.facts.acks != 0:
            yield f"{_INDENT}no answer"
        before_ns = max(before_ns or 0, pair.last.first.ns)


def title(frame: ArchivedFrame) -> str:
    """Return API, version, correlation id and size of a frame."""
    first = frame.first
    return f"{frame.api} {first.api_version} #{first.correlation_id}, {first.frame_bytes} bytes"


def clock(frame: ArchivedFrame) -> str:
    """Return the local time of a frame, with microseconds."""
    return datetime.fromtimestamp(frame.first.ts_us / 1e6).astimezone().strftime("%H:%M:%S.%f")


def milliseconds(us: int) -> str:
    """Return a duration as people write it."""
    return f"{us / 1000:.1f} ms" if us < 1_000_000 else f"{us / 1e6:.1f} s"
