"""The interactive table takes keys: sort, filter, side, own traffic, pause, and a client with its conversation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import DataTable, Input, RichLog, Static

from kafka_probe.errors import KafkaProbeError
from kafka_probe.events import bucket_of
from kafka_probe.interactive_top import ClientScreen, InteractiveTop
from kafka_probe.setting_types import ArchiveFilter
from kafka_probe.top import COLUMNS
from tests.builders.events import broker_flow, client, passed, workload
from tests.builders.fed_agent import Fed
from tests.builders.follower import exchange
from tests.builders.messages import CLIENT_ID
from tests.builders.samples import opened

SIZE = (200, 30)
NOT_FOLLOWED = "These connections are not followed: they are kafka-probe's own, or of several clients."
CLIENT, API = ([column.name for column in COLUMNS].index(name) for name in ("CLIENT", "API"))
FLOWS = (
    broker_flow(requests=10, client=client("billing"), response_bytes=9000, latency={str(bucket_of(9000)): 1}),
    broker_flow(requests=30, client=client("audit"), errors={"6": 2}, topics=[]),
    broker_flow(requests=20, client=client("[bold]x"), side="client", flow_id="a", peer="10.0.0.1:9092"),
    broker_flow(requests=5, internal=True, api=None, topics=[]),
)


class Top(InteractiveTop):
    """One that follows connections as soon as they are chosen. chosen: all that were."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[ArchiveFilter | None] = []
        self.follow = self._follow_at_once

    def _follow_at_once(self, wanted: ArchiveFilter | None, begin: Callable[[], None]) -> None:
        self.chosen.append(wanted)
        begin()


def shown(script: Callable[[InteractiveTop, Pilot[None]], Awaitable[None]], *flows: Any) -> Top:
    """Run a script on an app that shows these flows."""
    top = Top()

    async def run() -> None:
        async with top.app.run_test(size=SIZE) as pilot:
            top.send([*(flows or FLOWS), passed()])
            await pilot.pause()
            await script(top, pilot)

    asyncio.run(run())
    return top


def clients(top: InteractiveTop) -> list[str]:
    table = top.app.query_one(DataTable)
    return [table.get_row_at(row)[CLIENT].plain for row in range(table.row_count)]


def status(top: InteractiveTop) -> str:
    return str(top.app.query_one(Static).render())


def test_the_busiest_row_is_first_and_own_traffic_is_shown_on_demand() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        assert clients(top) == ["audit", "[bold]x", "billing"]
        await pilot.press("i")
        assert len(clients(top)) == 4

    shown(script)


def test_rows_are_sorted_by_other_columns() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        seen = []
        for _ in range(5):
            await pilot.press("s")
            seen.append((clients(top)[0], status(top).split(";")[0].removeprefix("sorted by ")))
        busiest = ("billing", "bytes"), ("[bold]x", "records"), ("billing", "p99"), ("audit", "errors")
        assert seen == [*busiest, ("audit", "requests")]

    shown(script)


def test_rows_are_filtered_by_a_text_and_by_side() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"bill", "enter")
        assert clients(top) == ["billing"]
        assert "the last" not in status(top)
        await pilot.press("escape")
        assert len(clients(top)) == 3
        await pilot.press("d")
        assert clients(top) == ["[bold]x"]
        assert "clients only" in status(top)
        await pilot.press("d")
        assert clients(top) == ["audit", "billing"]

    shown(script)


def test_a_paused_table_stays_and_the_cursor_stays_on_its_row() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        await pilot.press("down")
        top.send([broker_flow(requests=40, client=client("[bold]x"), side="client", topics=[]), *FLOWS[:2], passed()])
        await pilot.pause()
        table = top.app.query_one(DataTable)
        assert clients(top)[table.cursor_row] == "[bold]x"
        await pilot.press("p")
        top.send([broker_flow(client=client("new")), passed()])
        await pilot.pause()
        assert "new" not in clients(top)
        assert "paused" in status(top)

    shown(script)


def test_a_client_has_its_facts_and_its_conversation_while_it_is_shown() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        screen = top.app.screen
        assert isinstance(screen, ClientScreen)
        screen.offer("14:03:01  [red]Metadata 12")
        await pilot.pause()
        assert lines(screen) == ["14:03:01  [red]Metadata 12"]
        facts = str(screen.query_one(Static).render())
        assert "audit" in facts
        assert "Produce" in facts
        await pilot.press("escape")
        assert not isinstance(top.app.screen, ClientScreen)

    assert shown(script).chosen == [ArchiveFilter(client="audit", pid="7", address="10.0.0.1"), None]


def lines(screen: Screen[Any]) -> list[str]:
    return [line.text for line in screen.query_one(RichLog).lines]


@pytest.mark.parametrize(
    ("flow", "wanted"),
    [
        (broker_flow(client=client("*"), side="client", peer="10.0.0.1:9092"), ArchiveFilter(client="[*]", pid="7")),
        (broker_flow(client=client(None)), ArchiveFilter(pid="7", address="10.0.0.1")),
        (broker_flow(internal=True, api=None), None),
        (broker_flow(client=client(None), workload=workload(None, pid=None), peer=None), None),
    ],
    ids=["no pattern", "without an id", "own", "of several clients"],
)
def test_exactly_the_connections_of_a_row_are_followed(flow: Any, wanted: ArchiveFilter | None) -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        await pilot.press("i", "enter")
        await pilot.pause()
        assert isinstance(top.app.screen, ClientScreen)
        assert " ".join(line.strip() for line in lines(top.app.screen)) == ("" if wanted else NOT_FOLLOWED)

    assert shown(script, flow).chosen[0] == wanted


def test_the_frames_of_the_client_are_shown_with_it_as_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.isatty", lambda descriptor: descriptor >= 0)
    fed = Fed(archive={"archive": "all", "recorder_bytes": 0})
    fed.see(opened(1, tgid=7, rx_base=1, tx_base=2), exchange(1))
    fed.report()
    events: Any = [*fed.archive_sink.events, *fed.sink.events]

    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        top.connections = fed.agent.connections
        await pilot.press("enter")
        screen = top.app.screen
        top.send(events)
        await pilot.pause()
        text = "\n".join(lines(screen))
        assert text.startswith(f"client {CLIENT_ID}")
        assert text.index("Metadata 1 #1") < text.index("response after 1.5 ms")
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        top.send([passed()])
        await pilot.pause()
        assert lines(top.app.screen) == []

    shown(script)


def test_notices_about_a_conversation_are_shown_only_with_it() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        for _ in range(6):
            top.send([*FLOWS, passed()])
        await pilot.press("enter")
        screen = top.app.screen
        for _ in range(5):
            top.send([*FLOWS, passed()])
        await pilot.pause()
        assert " ".join(lines(screen)).count("No frames of the chosen connections so far.") == 1
        assert "No frames" not in status(top)
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert top.app.screen is not screen
        assert lines(top.app.screen) == []

    shown(script)


def test_losses_before_a_conversation_are_none_of_it() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        lost = {"frame_incomplete": 500}
        top.send([*FLOWS, passed(losses=lost)])
        await pilot.pause()
        await pilot.press("enter")
        for more, notices in ((0, 0), (2, 1)):
            top.send([*FLOWS, passed(losses={"frame_incomplete": 500 + more})])
            await pilot.pause()
            assert " ".join(lines(top.app.screen)).count("may be missing") == notices

    shown(script)


def test_what_a_terminal_does_not_read_waits_as_the_newest_interval_and_the_last_lines() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        screen = top.app.screen
        assert isinstance(screen, ClientScreen)
        for number in range(5000):
            screen.offer(f"{number}")
        for requests in range(1, 300):
            top.send([broker_flow(client=client("only"), requests=requests), passed()])
        assert top.app._message_queue.qsize() <= 2
        await pilot.pause()
        assert len(lines(screen)) == 2000
        assert "4999" in lines(screen)
        await pilot.press("escape")
        await pilot.pause()
        assert clients(top) == ["only"]

    shown(script)


def test_keys_of_the_table_do_nothing_while_a_client_covers_it() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        await pilot.press("enter", "s", "p", "slash", "escape")
        assert "sorted by requests;" in status(top)
        assert not top.app.query_one(Input).display

    shown(script)


def test_the_cursor_stays_with_its_client_and_else_in_its_row() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        table = top.app.query_one(DataTable)
        await pilot.press("down", "down")
        assert clients(top)[table.cursor_row] == "billing"
        top.send([*FLOWS[1:3], broker_flow(requests=1, client=client("billing"), api="Fetch"), passed()])
        await pilot.pause()
        assert clients(top)[table.cursor_row] == "billing"
        top.send([*FLOWS[1:3], passed()])
        await pilot.pause()
        assert table.cursor_row == 1

    shown(script)


def test_own_traffic_that_is_hidden_is_counted_below_the_table() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        assert "3 rows over 5.0 s" in status(top)
        assert "5 of kafka-probe's own requests are left out" in status(top)
        await pilot.press("i")
        assert "4 rows over 5.0 s" in status(top)
        assert "left out" not in status(top)

    shown(script)


def test_a_long_name_is_cut_and_the_place_stays() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        table = top.app.query_one(DataTable)
        assert clients(top)[0] == "x" * 27 + "…"
        table.scroll_to(x=5, y=9, animate=False)
        await pilot.pause()
        before = table.scroll_offset
        top.send([*many, passed()])
        await pilot.pause()
        assert table.scroll_offset == before
        assert before.y > 0

    many = [broker_flow(client=client("x" * 200), requests=99)]
    many += [broker_flow(client=client(f"{number}"), requests=1) for number in range(60)]
    shown(script, *many)


def test_a_failure_of_the_app_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    top, stops = InteractiveTop(), list[None]()
    monkeypatch.setattr(top.app, "run", lambda: top.app.exit(return_code=1))
    with pytest.raises(KafkaProbeError, match="table failed"):
        top.show_while(lambda: None, lambda: stops.append(None))
    assert len(stops) == 1


def test_q_ends_the_agent_and_the_end_of_the_agent_ends_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    top, stopped = InteractiveTop(), threading.Event()
    began = threading.Event()

    async def quit_soon() -> None:
        while not began.is_set():
            await asyncio.sleep(0.01)
        await top.app.action_quit()

    def run() -> None:
        began.set()
        assert stopped.wait(30)

    monkeypatch.setattr(top.app, "run", lambda: asyncio.run(_headless(top, quit_soon)))
    top.show_while(run, stopped.set)
    assert stopped.is_set()


def test_what_the_agent_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    top = InteractiveTop()

    def fail() -> None:
        raise OSError("gone")

    async def nothing() -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(top.app, "run", lambda: asyncio.run(_headless(top, nothing)))
    with pytest.raises(OSError, match="gone"):
        top.show_while(fail, lambda: None)


async def _headless(top: InteractiveTop, script: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.ensure_future(script())
    await top.app.run_async(headless=True, size=SIZE)
    task.cancel()


def test_a_narrow_terminal_has_fewer_columns() -> None:
    async def script(top: InteractiveTop, pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert len(top.app.query_one(DataTable).columns) == sum(not column.wide for column in COLUMNS)
        assert not top.app.query_one(Input).display

    shown(script)
