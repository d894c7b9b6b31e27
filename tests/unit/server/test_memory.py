"""The server's memory stays within the parts of `--memory-limit` that are for it, whatever clients and peers send."""

from __future__ import annotations

import asyncio
import random
import string
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kafka_probe.connections.offsets import GroupLag
from kafka_probe.events import bucket_of
from kafka_probe.memory import HTTP_BYTES, MIB, SERIES_BYTES
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.server.exposition import PART_BYTES, Exposition, PageResponse
from kafka_probe.server.http_connection import MOST, REQUEST_BYTES, REQUEST_LINES, UNREAD_S, WRITE_BUFFER_BYTES
from kafka_probe.server.label_tables import LABEL_BYTES
from kafka_probe.server.limits import LISTS_AT_ONCE, REQUESTS_AT_ONCE, REQUESTS_PER_S
from kafka_probe.server.query import PAGE_BYTES
from kafka_probe.server.server import BACKLOG, BUFFER_BYTES
from kafka_probe.server.traffic import BOUNDS_S, ENDS, Traffic
from kafka_probe.server.view import View
from tests.builders.events import StillAgent, StillSink, agent, client, close, flow, open_now, topic, workload
from tests.lab.agent_server import serving

SERIES = 1000
_SORTED_BYTES, _BUILT_BYTES, _REQUESTS_BYTES = 3 * MIB, 3 * MIB, MIB
_SEGMENT_BYTES = 64 << 10
ERRORS = [str(code) for code in ERROR_NAMES]
LATENCIES = [str(bucket_of(round(bound_s * 1e6))) for bound_s in BOUNDS_S]
_OF_TOPICS = ("requests", "records", "bytes", "uncounted_bytes")
_OF_FLOWS = ("requests", "responses", "request_bytes", "response_bytes", "throttle_ms")


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def random_text(characters: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=characters))


def full() -> list[Any]:
    """Return events that fill all tables, with labels, errors and numbers that compress badly."""
    numbers = random.Random(0)

    def counts(names: Iterable[str]) -> dict[str, int]:
        return {name: numbers.getrandbits(40) for name in names}

    events = list[dict[str, Any]]()
    for number in range(2 * SERIES):  # as many label sets again wait for a row
        owner = workload(random_text(LABEL_BYTES - 13, number), pid=number)
        id_ = client(random_text(20, number), software_version=random_text(8, number))
        named = topic(random_text(20, number), errors=counts(ERRORS), **counts(_OF_TOPICS))
        latencies: dict[str, Any] = {name: counts(LATENCIES) for name in ("latency", "latency_empty")}
        events += [
            flow(workload=owner, client=id_, topics=[named], errors=counts(ERRORS), **(latencies | counts(_OF_FLOWS))),
            close(workload=owner, how=ENDS[number % len(ENDS)][0]),
        ]
    return [*events, agent(open=[{**open_now(), "workload": event["workload"]} for event in events[::2]])]


def test_label_sets_and_their_pages_take_no_more_than_their_part() -> None:
    """The last page of each format is kept, and the one before may still be sent."""
    events = full()
    before, _ = tracemalloc.get_traced_memory()
    lags = [
        GroupLag(random_text(22, number), random_text(20, number), random_text(20, number), 9, 2**40, 2**40)
        for number in range(SERIES)
    ]
    shown = View(StillAgent(lags=lags), StillSink(), Traffic(SERIES))
    shown.add(events)
    rows_bytes = tracemalloc.get_traced_memory()[0] - before
    answer = asyncio.run(Exposition(shown, lambda page: page, "", asyncio.Lock()).answer())
    assert isinstance(answer, PageResponse)
    page_bytes = sum(map(sys.getsizeof, answer.page.parts))
    assert answer.page.size > SERIES * 9_000
    assert rows_bytes + 4 * page_bytes < SERIES * SERIES_BYTES


def test_a_page_is_built_in_little_memory_of_its_own() -> None:
    shown = View(StillAgent(), StillSink(), Traffic(SERIES))
    shown.add(full())
    tracemalloc.reset_peak()
    asyncio.run(Exposition(shown, lambda page: page, "", asyncio.Lock()).answer())
    kept, peak = tracemalloc.get_traced_memory()
    assert peak - kept < _BUILT_BYTES


def test_requests_of_all_connections_take_no_more_than_their_part() -> None:
    lines = b"".join(b"%d: \r\n" % n for n in range(REQUEST_LINES - 4))
    padding = b"X: " + b"x" * (REQUEST_BYTES - len(lines) - 50) + b"\r\n"
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + lines + padding + b"\r\n"
    with serving() as served, ExitStack() as clients:
        served.get("/healthz")
        before, _ = tracemalloc.get_traced_memory()
        for client in [clients.enter_context(served.connect()) for _ in range(MOST - 1)]:
            client.sendall(request[:-1])
        served.get("/healthz")  # answered after these were read, by the same thread
        kept, _ = tracemalloc.get_traced_memory()
    assert REQUEST_BYTES - 50 < len(request) <= REQUEST_BYTES
    assert kept - before < _REQUESTS_BYTES


def test_the_parts_of_the_budget_fit() -> None:
    lists = LISTS_AT_ONCE * PAGE_BYTES + PAGE_BYTES  # being sent; the last one's rows while it is put together
    buffers = MOST * (WRITE_BUFFER_BYTES + PART_BYTES)
    # Linux doubles the size of a socket's buffer, and fills a segment beyond it. A closed connection keeps its answer
    # until the client has taken it. Connections that wait to be accepted may have sent their request.
    closed = REQUESTS_AT_ONCE + REQUESTS_PER_S * UNREAD_S
    sent = (2 * BUFFER_BYTES + _SEGMENT_BYTES) * (MOST + closed)
    received = 2 * BUFFER_BYTES * (MOST + BACKLOG)
    used = lists, _SORTED_BYTES, buffers, sent, received, _BUILT_BYTES, _REQUESTS_BYTES
    assert sum(used) <= HTTP_BYTES
