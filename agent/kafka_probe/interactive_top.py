"""The interactive table of `kafka-probe top`: sorted, filtered, paused, and a client with its conversation.

Textual draws it in the main thread, as it must. So the agent runs in another thread, and sends messages to the app.
"""

from __future__ import annotations

import glob
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress, cycle
from threading import Thread
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from kafka_probe.conversations.terminal import LINE_LIMIT
from kafka_probe.errors import KafkaProbeError
from kafka_probe.follow import FollowSink
from kafka_probe.follow_outputs import TextOutput
from kafka_probe.setting_types import ArchiveFilter
from kafka_probe.text import printable
from kafka_probe.top import COLUMNS, WIDE, Lags, RowKey, TopRow, TrafficTable, by_topic, cells, footer

if TYPE_CHECKING:
    from kafka_probe.connections.connection import Connection
    from kafka_probe.connections.offsets import GroupLag
    from kafka_probe.events import Event

_MOST_ROWS, _MOST_LINES = 500, 2000
_MOST_CELLS = 28  # terminal cells of a name in the table
_MOST_NAMES = 10  # of a kind on a client's screen
_NO_TERMINAL = -1  # as a descriptor: Textual wraps the lines
_SIDES = (None, "client", "server")
_SORTS: Mapping[str, Callable[[TopRow], float]] = {
    "requests": lambda row: row.requests,
    "bytes": lambda row: row.bytes,
    "records": lambda row: row.records,
    "p99": lambda row: row.quantile_us(0.99) or 0,
    "errors": lambda row: row.errors.total(),
}


class IntervalSums(NamedTuple):
    """The sums of an interval, and the lags at its end."""

    traffic: TrafficTable
    lags: Lags


class Wake(Message):
    """There is something new to show. Each pump has one of them at most, however long the terminal does not read."""


class Ended(Message):
    """The agent has ended."""


class InteractiveTop:
    """A sink that sends the sums of each interval, and the frames of the shown client, to its app.

    `connections`, `lags`, `both_ends_here` and `follow`: see the sinks' protocols. ports: a text about those watched.
    """

    def __init__(self, *, internal: bool = False, ports: str = "all ports") -> None:
        self.connections: Callable[[], Sequence[Connection]] = lambda: ()
        self.lags: Callable[[], Sequence[GroupLag]] = lambda: ()
        self.both_ends_here: Callable[[], Collection[str]] = frozenset
        self.follow: Callable[[ArchiveFilter | None, Callable[[], None]], None] = lambda *_: None
        self.app = TopApp(lambda: self.connections(), self._show, internal=internal)
        self._ports = ports
        self._conversation: _ShownConversation | None = None
        self._lost: Mapping[str, int] = {}  # since the agent's start
        self._traffic = self._empty()

    def send(self, events: Sequence[Event]) -> None:
        if self._conversation:
            self._conversation.send(events)
        self._lost = next((event["losses"] for event in events if event["kind"] == "agent"), self._lost)
        if self._traffic.add(events):
            self.app.offer(IntervalSums(self._traffic, by_topic(self.lags())))
            self._traffic = self._empty()

    def close(self, timeout_s: float) -> None:
        """Nothing is queued."""

    def losses(self) -> Mapping[str, int]:
        return {}

    def counters(self) -> Mapping[str, int]:
        return {}

    def trouble(self) -> str | None:
        return None

    def show_while(self, run: Callable[[], None], stop: Callable[[], None]) -> None:
        """Show the app until the user quits or `run` returns, which another thread calls.

        stop: makes `run` return. Raises what `run` raised, or a `KafkaProbeError` if the app failed.
        """
        failures = list[Exception]()

        def agent() -> None:
            try:
                run()
            except Exception as error:  # the main thread raises it
                failures.append(error)
            self.app.post_message(Ended())

        thread = self.app.starts = Thread(target=agent, name="agent")
        try:
            with self._logs_as_notes():
                self.app.run()
        finally:
            stop()
            if thread.ident is not None:
                thread.join()
        if failures:
            raise failures[0]
        if self.app.return_code:
            raise KafkaProbeError("The interactive table failed: see above, or use `kafka-probe top --json`.")

    def _empty(self) -> TrafficTable:
        return TrafficTable(internal=True, both_ends_here=lambda: self.both_ends_here())

    def _show(self, screen: ClientScreen | None) -> None:
        """Follow the connections of a screen's client, or none."""

        def begin() -> None:
            self._conversation = None
            if screen and screen.wanted:
                self._conversation = _ShownConversation(screen, self._ports, self._lost)
                self._conversation.connections = self.connections

        self.follow(screen.wanted if screen else None, begin)

    @contextmanager
    def _logs_as_notes(self) -> Iterator[None]:
        """Show log messages in the app: on standard error they would spoil its picture."""
        log = logging.getLogger("kafka_probe")
        handlers, log.handlers = log.handlers, [_Notes(self.app.offer_note)]
        try:
            yield
        finally:
            log.handlers = handlers


class _ShownConversation(FollowSink):
    """Sends the lines of a conversation to the screen that shows it."""

    def __init__(self, screen: ClientScreen, ports: str, lost: Mapping[str, int]) -> None:
        super().__init__(TextOutput(_NO_TERMINAL, verbose=False), notice=screen.offer, ports=ports)
        self._screen = screen
        self._lost = lost

    def write(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._screen.offer(line.decode(errors="replace").rstrip("\n"))


class _Notes(logging.Handler):
    def __init__(self, note: Callable[[str], object]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(record.getMessage())


class ClientScreen(Screen[None]):
    """A client: its facts, and its conversation from now on. wanted: its connections; None: they cannot be followed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "back", "Back")]

    def __init__(self, facts: str, wanted: ArchiveFilter | None) -> None:
        super().__init__()
        self.wanted = wanted
        self._facts = facts
        self._lines = RichLog(max_lines=_MOST_LINES, wrap=True, markup=False)
        self._waiting = deque[str](maxlen=_MOST_LINES)
        self._woken = False

    def compose(self) -> ComposeResult:
        yield Static(Text(self._facts))
        yield self._lines
        yield Footer()

    def on_mount(self) -> None:
        if self.wanted is None:
            self.offer("These connections are not followed: they are kafka-probe's own, or of several clients.")

    def action_back(self) -> None:
        self.dismiss()

    def offer(self, line: str) -> None:
        """Add a line to the conversation. For any thread."""
        self._waiting.append(line)
        if not self._woken:
            self._woken = True
            self.post_message(Wake())

    @on(Wake)
    def add(self) -> None:
        """Add the lines that wait."""
        self._woken = False
        while self._waiting:
            self._lines.write(Text(printable(self._waiting.popleft(), LINE_LIMIT)))


class TopApp(App[None]):
    """The table of the last interval.

    connections: returns the open ones. show: makes the agent send the conversation of a screen, or none.
    """

    CSS = "DataTable { height: 1fr; } Input { display: none; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("slash", "find", "Filter"),
        Binding("escape", "find_all", "All", show=False),
        Binding("s", "sort", "Sort"),
        Binding("d", "side", "Side"),
        Binding("i", "internal", "Own traffic"),
        Binding("p", "pause", "Pause"),
    ]

    def __init__(
        self,
        connections: Callable[[], Sequence[Connection]],
        show: Callable[[ClientScreen | None], None],
        *,
        internal: bool = False,
    ) -> None:
        super().__init__()
        self.starts: Thread | None = None  # once the app is there to show what it sends
        self._connections = connections
        self._show = show
        self._newest: IntervalSums | None = None
        self._woken = False
        self._shown: IntervalSums | None = None
        self._keys: dict[str, RowKey] = {}
        self._columns: list[bool] = []
        self._find = self._note = ""
        self._internal, self._paused = internal, False
        self._sorts, self._sides = cycle(_SORTS), cycle(_SIDES)
        self._sort, self._side = next(self._sorts), next(self._sides)

    def compose(self) -> ComposeResult:
        yield DataTable[Text](cursor_type="row", zebra_stripes=True)
        yield Input(placeholder="part of a client, topic, API, process, container, peer or group")
        yield Static()
        yield Footer()

    def on_mount(self) -> None:
        self._draw()
        if self.starts:
            self.starts.start()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def offer(self, sums: IntervalSums) -> None:
        """Show the sums of an interval, unless the table is paused. For any thread."""
        self._newest = sums
        self._wake()

    def offer_note(self, text: str) -> None:
        """Show a sentence below the table. For any thread."""
        self._note = printable(text)
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self.post_message(Wake())

    @on(Wake)
    def take(self) -> None:
        """Show what is new."""
        self._woken = False
        if not self._paused:
            self._shown = self._newest
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for the actions of the table while a client covers it."""
        of_table = action in ("find", "find_all", "sort", "side", "internal", "pause")
        return not (of_table and isinstance(self.screen, ClientScreen)) and super().check_action(action, parameters)

    @on(Ended)
    def end(self) -> None:
        """End with the agent."""
        self.exit()

    @on(Input.Changed)
    def filter_rows(self, changed: Input.Changed) -> None:
        """Show the rows that contain the text."""
        self._find = changed.value.lower()
        self._draw()

    @on(Input.Submitted)
    def end_input(self) -> None:
        """Return to the table."""
        self.query_one(DataTable).focus()

    @on(DataTable.RowSelected)
    def show_client(self, selected: DataTable.RowSelected) -> None:
        """Show the client of a row, and follow its connections until the user returns."""
        key = self._keys.get(selected.row_key.value or "")
        if key is None:  # the table was drawn anew meanwhile
            return
        screen = ClientScreen(self._facts(key), _connections_of(key))
        self.push_screen(screen, lambda _: self._show(None))
        self._show(screen)

    def action_find(self) -> None:
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def action_find_all(self) -> None:
        field = self.query_one(Input)
        field.value = ""
        field.display = False
        self.query_one(DataTable).focus()

    def action_sort(self) -> None:
        self._sort = next(self._sorts)
        self._draw()

    def action_side(self) -> None:
        self._side = next(self._sides)
        self._draw()

    def action_internal(self) -> None:
        self._internal = not self._internal
        self._draw()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._wake()

    def _draw(self) -> None:
        """Draw the rows anew; the cursor stays on its row."""
        if not self.is_running:
            return
        if self._shown is None:
            self._status("Attached; the first figures come at the end of the interval.")
            return
        table = self.query_one(DataTable)
        columns = [self.size.width >= WIDE or not column.wide for column in COLUMNS]
        before, cursor_row = [*self._keys.values()], table.cursor_row
        chosen = before[cursor_row] if cursor_row < len(before) else None
        place = table.scroll_offset
        table.clear(columns=columns != self._columns)
        if columns != self._columns:
            self._columns = columns
            for column in compress(COLUMNS, columns):
                table.add_column(Text(column.name, justify=column.align))
        traffic, rows = self._shown.traffic, self._rows(self._shown.traffic)
        self._keys = {repr(key): key for key, _ in rows[:_MOST_ROWS]}
        for (key, row), name in zip(rows, self._keys, strict=False):
            texts = cells(key, row, traffic.seconds or 1.0, self._shown.lags)
            of_row = [Text(text, justify=column.align) for text, column in zip(texts, COLUMNS, strict=True)]
            for text in of_row:
                text.truncate(_MOST_CELLS, overflow="ellipsis")
            table.add_row(*compress(of_row, columns), key=name)
        if chosen and self._keys:
            table.move_cursor(row=_row_of(chosen, [*self._keys.values()], cursor_row), scroll=False)
        table.scroll_to(place.x, place.y, animate=False)
        hidden = (row.requests for key, row in traffic.rows.items() if key.internal and not self._internal)
        traffic.left_out = sum(hidden)
        self._status(footer(traffic, len(rows), len(self._keys), self._connections()))

    def _rows(self, traffic: TrafficTable) -> list[tuple[RowKey, TopRow]]:
        rows = [
            (key, row)
            for key, row in traffic.rows.items()
            if (self._internal or not key.internal)
            and self._side in (None, key.side)
            and self._find in " ".join(str(value).lower() for value in key if value is not None)
        ]
        rows.sort(key=lambda item: (-_SORTS[self._sort](item[1]), str(item[0])))
        return rows

    def _status(self, text: str) -> None:
        state = [f"sorted by {self._sort}", *(["paused"] if self._paused else ())]
        if self._side:
            state.append(f"{self._side}s only")
        lines = [f"{', '.join(state)}; {text}", *([self._note] if self._note else ())]
        self.query_one(Static).update(Text("\n".join(lines)))

    def _facts(self, key: RowKey) -> str:
        """Return the facts of a client: its process, library, groups, APIs, topics and open connections."""
        assert self._shown
        of_client = [other for other in self._shown.traffic.rows if _client(other) == _client(key)]
        ends = [
            f"{one.identity.local} → {one.identity.peer}"
            for one in self._connections()
            if (one.side, one.workload.pid, one.client_id) == (key.side, key.pid, key.client_id)
            and (key.side == "client" or one.identity.peer.rpartition(":")[0] == key.peer)
        ]
        facts: dict[str, Collection[str | None]] = {
            "client": [key.client_id],
            "library": [key.library],
            "process": [f"{key.comm}[{key.pid}]"],
            "container": [key.container],
            "groups": {other.group for other in of_client},
            "APIs": {other.api for other in of_client},
            "topics": {other.topic for other in of_client},
            "connections": ends,
        }
        return "\n".join(f"{name:12} {_listed(values)}" for name, values in facts.items() if any(values))


def _row_of(chosen: RowKey, keys: Sequence[RowKey], before: int) -> int:
    """Return the row of a key, else one of the same client, else the row where it was."""
    if chosen in keys:
        return keys.index(chosen)
    of_client = (row for row, key in enumerate(keys) if _client(key) == _client(chosen))
    return next(of_client, min(before, len(keys) - 1))


def _client(key: RowKey) -> tuple[object, ...]:
    """Return what rows of one client have in common; the rows of a broker also its host."""
    return key.side, key.pid, key.client_id, key.internal, key.peer if key.side == "server" else None


def _connections_of(key: RowKey) -> ArchiveFilter | None:
    """Return the choice of the connections of a row's client; None if they are not followed, see ClientScreen."""
    if key.internal:
        return None
    wanted = {
        "client": key.client_id and glob.escape(key.client_id),
        "pid": str(key.pid) if key.pid else None,
        "address": key.peer if key.side == "server" else None,
    }
    known = {name: value for name, value in wanted.items() if value}
    return ArchiveFilter.of(known) if known else None


def _listed(values: Collection[str | None]) -> str:
    """Return the first of these texts, and how many follow."""
    known = sorted(filter(None, values))
    names = [printable(value) for value in known[:_MOST_NAMES]]
    if more := len(known) - len(names):
        names.append(f"and {more} more")
    return ", ".join(names)
