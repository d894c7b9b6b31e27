"""The page of metrics: what is sent while it is built, and what slow clients can do to it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine

import pytest
from starlette.responses import Response
from starlette.types import Message

from kafka_probe.server import exposition
from kafka_probe.server.exposition import OPENMETRICS, Build, Built, Exposition, Page, PageResponse
from kafka_probe.server.view import View
from tests.builders.events import flow, view
from tests.lab.agent_server import serving
from tests.lab.processes import wait_until

FORMATS = ("", f"{OPENMETRICS};version=1.0.0")


@pytest.mark.parametrize("accept", FORMATS)
def test_metrics_are_made_in_parts_that_are_one_page(monkeypatch: pytest.MonkeyPatch, accept: str) -> None:
    flows = [flow(api=f"Api{n}", latency={"40": n}, errors={"1": 1}) for n in range(1, 40)]

    def page() -> str:
        with serving() as served:
            served.server.send(flows)
            return re.sub(r"(start_time_seconds|cpu_seconds_total) .*", "", served.get("/metrics", accept=accept).text)

    whole = page()
    monkeypatch.setattr(exposition, "_ROWS_AT_ONCE", 7)
    assert page() == whole
    assert whole.count("# TYPE kafka_probe_workload_latency_seconds histogram") == 1


def test_while_a_page_of_metrics_is_built_the_last_one_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "FRESH_S", 0)
    shown = view(flow())

    async def answers() -> list[Response]:
        built = asyncio.Event()

        async def build(page: Coroutine[None, None, Built], /) -> Built:
            await built.wait()
            return await page

        plain = Exposition(shown, build, "", asyncio.Lock())
        first = asyncio.create_task(plain.answer())
        await asyncio.sleep(0)
        early = await plain.answer()
        built.set()
        page = await first
        shown.add([flow()])
        built.clear()
        second = asyncio.create_task(plain.answer())
        await asyncio.sleep(0)
        late = await plain.answer()
        built.set()
        return [early, page, late, await second]

    early, first, late, second = asyncio.run(answers())
    assert early.status_code == 429
    assert page_of(late).page is page_of(first).page is not page_of(second).page


def page_of(response: Response) -> PageResponse:
    assert isinstance(response, PageResponse)
    return response


def test_a_head_request_has_no_body() -> None:
    with serving() as served:
        answer = served.exchange(b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert body == b""


def test_a_page_of_metrics_is_made_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "FRESH_S", 3600)
    with serving() as served:
        first = served.get("/metrics").text
        served.server.send([flow()])
        assert served.get("/metrics").text == first
        monkeypatch.setattr(exposition, "FRESH_S", 0)
        wait_until(lambda: served.get("/metrics").text != first, "another page")


class Reader:
    """A client that does not read its answer until it is let go."""

    def __init__(self, response: Response) -> None:
        self.page = page_of(response).page
        self.goes_on = asyncio.Event()
        self._task = asyncio.create_task(response({"type": "http", "method": "GET"}, self._receive, self._send))

    async def end(self) -> None:
        self.goes_on.set()
        await self._task

    async def _receive(self) -> Message:
        raise AssertionError

    async def _send(self, _: Message) -> None:
        await self.goes_on.wait()


async def build_at_once(page: Coroutine[None, None, Built], /) -> Built:
    return await page


async def asked(shown: View, exposition_: Exposition) -> Reader:
    """Have something counted, and let a slow client ask for the page."""
    shown.add([flow()])
    reader = Reader(await exposition_.answer())
    await asyncio.sleep(0)
    return reader


def test_of_pages_that_are_read_slowly_two_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "FRESH_S", 0)

    async def pages() -> list[Page]:
        shown = view(flow())
        plain = Exposition(shown, build_at_once, "", asyncio.Lock())
        readers = [await asked(shown, plain) for _ in range(10)]
        for reader in readers:
            await reader.end()
        return [reader.page for reader in (*readers, await asked(shown, plain))]

    *slow, last = asyncio.run(pages())
    assert len({id(page) for page in slow}) == 2
    assert all(page is not last for page in slow)


def test_readers_who_overlap_keep_nobody_from_a_new_page_of_any_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader has a limited time, but always another one has begun to read the same page before."""
    monkeypatch.setattr(exposition, "FRESH_S", 0)

    async def pages() -> list[list[Page]]:
        shown, turn = view(flow()), asyncio.Lock()
        expositions = [Exposition(shown, build_at_once, accept, turn) for accept in FORMATS]
        seen: list[list[Page]] = [[] for _ in FORMATS]
        before: list[Reader] = []
        for _ in range(6):
            readers = [await asked(shown, each) for each in expositions]
            for reader in before:
                await reader.end()
            before = readers
            for of_format, reader in zip(seen, readers, strict=True):
                of_format.append(reader.page)
        for reader in before:
            await reader.end()
        return seen

    for of_format in asyncio.run(pages()):
        assert len({id(page) for page in of_format}) >= 3


def test_two_formats_are_built_one_after_the_other() -> None:
    building = [0, 0]  # now, and at most

    async def build(page: Coroutine[None, None, Built], /) -> Built:
        building[0] += 1
        building[1] = max(building)
        await asyncio.sleep(0)
        building[0] -= 1
        return await page

    async def answers() -> list[Response]:
        shown, turn = view(flow()), asyncio.Lock()
        wanted: Build = build
        return [*await asyncio.gather(*(Exposition(shown, wanted, accept, turn).answer() for accept in FORMATS))]

    assert [answer.status_code for answer in asyncio.run(answers())] == [200, 200]
    assert building == [0, 1]
