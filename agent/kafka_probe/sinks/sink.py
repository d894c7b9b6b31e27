"""The interface of a sink, and what some sinks can do besides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kafka_probe.events import Event

if TYPE_CHECKING:
    from kafka_probe.connections.connection import Connection
    from kafka_probe.connections.offsets import GroupLag
    from kafka_probe.setting_types import ArchiveFilter


class Sink(Protocol):
    """A destination of events."""

    def send(self, events: Sequence[Event]) -> None:
        """Queue events in order. Never block and never raise: drop and count the events that do not fit."""

    def close(self, timeout_s: float) -> None:
        """Stop: deliver events for at most `timeout_s` seconds, then spool the rest or count it as lost. Idempotent."""

    def losses(self) -> Mapping[str, int]:
        """Return the events lost since the start, by reason. Every reason is present from the start, with 0."""

    def counters(self) -> Mapping[str, int]:
        """Return totals of the delivery since the start and, as sizes in bytes, the events queued now."""

    def trouble(self) -> str | None:
        """Return the reason why no events are delivered now, as text without secrets; None if they are delivered."""


@runtime_checkable
class EndingSink(Protocol):
    """A sink that can end by itself, as when its reader closes a pipe. It calls `on_closed` then, in any thread.

    failure: why its output cannot be written; None if it can, or if the reader closed the pipe.
    """

    on_closed: Callable[[], None]
    failure: str | None


@runtime_checkable
class ConnectionsSink(Protocol):
    """A sink that shows the open connections, which `connections` returns."""

    connections: Callable[[], Sequence[Connection]]


@runtime_checkable
class AppSink(Protocol):
    """A sink that shows the events in an app, which has the main thread while the agent runs in another.

    follow: makes the agent send the frames of some connections, or of none, and calls a function when it begins to.
    """

    follow: Callable[[ArchiveFilter | None, Callable[[], None]], None]

    def show_while(self, run: Callable[[], None], stop: Callable[[], None]) -> None:
        """Show the app until the user quits or `run` returns; stop: makes it return. Raise what it raised."""


@runtime_checkable
class TableSink(Protocol):
    """A sink that shows a row per connection, and how far groups are behind, which `lags` returns.

    both_ends_here: returns the flow ids of connections of which both ends are on this host.
    """

    lags: Callable[[], Sequence[GroupLag]]
    both_ends_here: Callable[[], Collection[str]]
