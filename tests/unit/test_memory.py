"""`--memory-limit`: what it is divided into, and what every table does at its bound."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import orjson
import pytest

from kafka_probe.capture.btf import Btf
from kafka_probe.capture.compiler import Map, compile_programs
from kafka_probe.capture.options import Options
from kafka_probe.capture.sample import SampleKind
from kafka_probe.config import Config
from kafka_probe.connections.brokers import BrokerFiles
from kafka_probe.connections.exchange import Exchanges
from kafka_probe.connections.frames import FrameReader
from kafka_probe.connections.pending_closes import PendingCloses
from kafka_probe.connections.reassembly import Reassembler
from kafka_probe.connections.sessions import FetchSession
from kafka_probe.connections.topics import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.errors import StartError
from kafka_probe.events import bucket_of
from kafka_probe.flows import CHARACTERS, SUMMED, TOPICS, Flows
from kafka_probe.memory import (
    CONNECTION_BYTES,
    DECODED_BYTES,
    DEFAULT,
    KERNEL_CONNECTION_BYTES,
    MIB,
    bounds_of,
    event_bytes,
)
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, shape_bytes
from kafka_probe.protocol.shapes import code_of, decode_code
from kafka_probe.shares import SharedBudget, Shares
from kafka_probe.sinks.outbox import encode
from kafka_probe.workloads import Owner, WorkloadResolver, workload_bytes
from kafka_probe.workloads.pods import NAMELESS, Pod, Pods
from tests.unit.connections.samples import (
    Samples,
    by_hand,
    closed,
    fetch,
    frame,
    listener,
    message,
    opened,
    request,
    response,
    stream,
)
from tests.unit.protocol.messages import case
from tests.unit.schema import assert_body_valid
from tests.unit.server.builders import workload
from tests.unit.test_agent import Fed

PRODUCE, FETCH, METADATA = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA
RESOLVER = WorkloadResolver()
FEW = replace(DEFAULT, connections=3, ends=2, counts_bytes=100_000, groups=2)


def limited(**fields: object) -> Config:
    return Config(node="node-1", **fields)  # type: ignore[arg-type]  # read by pydantic


def test_the_default_limit_has_a_place_for_a_hundred_thousand_connections() -> None:
    assert bounds_of(limited()).connections >= 100_000
    assert bounds_of(limited(memory_limit="1GiB")).connections > 200_000


def test_a_limit_below_what_the_settings_need_is_refused_with_the_sum() -> None:
    with pytest.raises(StartError, match=r"--memory-limit 100 MiB is too low: 216 MiB are needed .*ring .* 8, "):
        bounds_of(limited(memory_limit="100MiB"))
    needed = bounds_of(limited(memory_limit="512MiB", ring_size_bytes="256MiB"))
    assert 0 < needed.connections < DEFAULT.connections
    with pytest.raises(StartError, match="720 MiB are needed"):
        bounds_of(limited(ring_size_bytes="512MiB"))


def test_a_limit_below_what_the_compiler_takes_is_refused() -> None:
    with pytest.raises(StartError, match=r"--memory-limit 256 MiB is too low: compiling the programs takes 384 MiB"):
        bounds_of(limited(memory_limit="256MiB"))


def test_parts_and_tables_together_are_no_more_than_the_limit() -> None:
    bounds = bounds_of(limited())
    in_bytes = (
        bounds.counts_bytes + bounds.shapes_bytes + bounds.unfinished_bytes + bounds.exchanges_bytes,
        bounds.learned_bytes + bounds.topic_names_bytes,
        bounds.connections * CONNECTION_BYTES,
    )
    assert sum(in_bytes) < 512 * MIB - (80 + 24 + 16 + 8 + 32) * MIB


SLAB_BYTES = (16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)  # kernel/bpf/memalloc.c
ELEMENT_BYTES = 48  # struct htab_elem, before the key
BUCKET_BYTES = 16  # struct bucket
LIST_NODE_BYTES = 8  # before an element that is allocated when it is used


def kernel_bytes(of: Map, *, beforehand: bool) -> int:
    """Of a full hash map, by kernel/bpf/hashtab.c; values are on 8 bytes."""
    element = ELEMENT_BYTES + of.key_bytes + -(-of.value_bytes // 8) * 8
    allocated = element if beforehand else min(slab for slab in SLAB_BYTES if slab >= element + LIST_NODE_BYTES)
    return of.entries * allocated + BUCKET_BYTES * (1 << (of.entries - 1).bit_length())


@pytest.mark.root
@pytest.mark.parametrize("limit", ["384MiB", "512MiB", "1GiB"])
def test_maps_take_no_more_of_a_connection_than_was_reckoned(limit: str) -> None:
    most = bounds_of(limited(memory_limit=limit)).connections
    options = Options((9092,), True, True, agent_tgid=0, ring_bytes=8 * MIB, max_connections=most)
    maps = dict(compile_programs("tracepoint", options, Btf()).maps.values())
    growing = sum(kernel_bytes(maps[name], beforehand=False) for name in ("conns", "unfinished"))
    assert growing + kernel_bytes(maps["held"], beforehand=True) <= most * KERNEL_CONNECTION_BYTES


def grown_by(make: Callable[[], object], times: int) -> float:
    """Bytes that Python allocates for each of so many, while they are kept."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / times if made else 0.0
    finally:
        tracemalloc.stop()


def test_a_connection_takes_no_more_than_was_reckoned() -> None:
    """What its group takes is reckoned apart."""
    tracker = Tracker(RESOLVER)
    records = [
        opened(conn, peer=(f"10.0.{conn >> 8}.{conn & 255}", 1024 + conn), netns=1 << 31, cookie=conn, tgid=7)[0]
        for conn in range(1, 2001)
    ]

    def open_all() -> Tracker:
        for record in records:
            tracker.take(record)
        list(tracker.report())
        return tracker

    tracker.take(opened(1 << 20, tgid=7)[0])
    assert grown_by(open_all, len(records)) < CONNECTION_BYTES - KERNEL_CONNECTION_BYTES


@pytest.mark.parametrize(
    ("api_key", "version", "data"),
    [
        (METADATA, 4, b"\0\1c" + (100).to_bytes(4, "big") + b"\0\0" * 100 + b"\0"),
        (METADATA, 4, b"\0\1c" + (60).to_bytes(4, "big") + b"".join(b"\0\1%c" % n for n in range(60)) + b"\0"),
        (PRODUCE, 9, case(PRODUCE, 9, response=False).data),
        (FETCH, 13, case(FETCH, 13, response=False).data),
    ],
)
def test_a_shape_takes_no_more_than_was_reckoned(api_key: int, version: int, data: bytes) -> None:
    code = code_of(False, api_key, version, copied_all=True)
    shape = decode_code(code, data)
    grown = grown_by(lambda: [decode_code(code, data) for _ in range(100)], 100)
    assert grown < shape_bytes(shape)


def test_a_text_keeps_256_bytes() -> None:
    name = b"x" * 32_000
    shape = decode_code(code_of(False, METADATA, 4, copied_all=True), len(name).to_bytes(2, "big") + name + bytes(5))
    (client_id,) = shape.facts.texts(Fact.CLIENT_ID)
    assert client_id == "x" * 256


def test_a_text_beyond_latin_1_takes_no_more() -> None:
    name = ("\N{PILE OF POO}" + "x" * 252).encode()
    shape = decode_code(code_of(False, METADATA, 4, copied_all=True), len(name).to_bytes(2, "big") + name + bytes(5))
    (client_id,) = shape.facts.texts(Fact.CLIENT_ID)
    assert client_id == "\N{PILE OF POO}" + "x" * 63
    assert sys.getsizeof(client_id) < sys.getsizeof("x" * 256) + 64


class Watched:
    """Connections with a place for few counts."""

    def __init__(self, connections: int) -> None:
        self.tracker = Tracker(RESOLVER, bounds=replace(DEFAULT, connections=300))
        self.reader = FrameReader(SUMMED)
        names = TopicNames()
        self.flows = Flows(self.tracker, names, BrokerFiles(names, RESOLVER), FEW)
        for conn in range(1, 1 + connections):
            self.tracker.take(opened(conn)[0])

    def see(self, *records: Samples) -> None:
        self.flows.add(self.reader.read(stream(*records)))

    def report(self) -> list[dict[str, object]]:
        events = list(self.flows.report())
        for event in events:
            assert_body_valid(event)
        return events

    def sessions(self, conn: int) -> tuple[FetchSession, ...]:
        connection = self.tracker.get(conn)
        assert connection
        return connection.sessions


def test_beyond_the_bound_all_frames_are_counted_by_side_and_api() -> None:
    watched = Watched(30)
    for conn in range(1, 31):
        watched.see(
            request(PRODUCE, 9, conn, client_id=f"client-{conn}", frame_bytes=100),
            response(PRODUCE, 9, conn, frame_bytes=50, latency_us=300),
        )
    events = watched.report()
    other = [event for event in events if event["conn_id"] is None]
    assert 2 <= len(events) - 1 < 30
    assert [(event["side"], event["api"], event["api_version"]) for event in other] == [("client", "Produce", None)]
    for name, total in (("requests", 30), ("responses", 30), ("request_bytes", 3000), ("response_bytes", 1500)):
        assert sum(int(str(event[name])) for event in events) == total
    latencies: list[dict[str, int]] = [event["latency"] for event in events]  # type: ignore[misc]
    assert sum((Counter(latency) for latency in latencies), Counter()) == {str(bucket_of(300)): 30}
    records = [sum(topic["records"] for topic in event["topics"]) for event in events]  # type: ignore[attr-defined]
    whole = Watched(1)
    whole.see(request(PRODUCE, 9), response(PRODUCE, 9))
    (one,) = whole.report()
    assert sum(records) == 30 * sum(topic["records"] for topic in one["topics"])  # type: ignore[attr-defined]
    lost = watched.flows.losses["flow_limit"]
    assert lost == sum(int(str(event["requests"])) + int(str(event["responses"])) for event in other) > 0


def test_latencies_find_no_place_beyond_the_bound() -> None:
    watched = Watched(2)
    watched.flows._place_bytes = 10_000
    watched.flows._shares = Shares(10_000)
    watched.see(fetch(0, ("orders",)), response(FETCH, 12))
    latencies = [int(1.2**n) for n in range(120)]
    for latency_us in latencies:
        watched.see(response(FETCH, 12, latency_us=latency_us), response(METADATA, 12, 2, latency_us=latency_us))
        assert watched.flows._held_bytes <= 10_000
    watched.see(fetch(1))
    events = watched.report()
    other = [event for event in events if event["conn_id"] is None]
    assert watched.flows.losses["flow_limit"] == sum(int(str(event["responses"])) for event in other) > 100
    assert sum(int(str(event["responses"])) for event in events) == 1 + 2 * len(latencies)
    found: list[dict[str, int]] = [event["latency"] for event in events]  # type: ignore[misc]
    assert sum((Counter(latency) for latency in found), Counter()).total() == 1 + 2 * len(latencies)
    asked = {topic["topic"]: topic["requests"] for topic in events[0]["topics"]}  # type: ignore[attr-defined]
    assert asked["orders"] == 2


@pytest.mark.parametrize("flood", ["address", "network", "process"])
def test_connections_of_one_peer_leave_a_place_to_others(flood: str) -> None:
    watched = Watched(0)
    for conn in range(2, 200):
        server_side, address = flood != "process", f"2001:db8::{conn:x}" if flood == "network" else "10.0.0.1"
        local = ("2001:db8:1::1" if flood == "network" else "10.0.0.7", 9092)
        watched.tracker.take(opened(conn, server_side=server_side, peer=(address, conn), local=local, tgid=7)[0])
        watched.see(request(METADATA, 12, conn, client_id=f"client-{conn}"))
    assert watched.flows.losses["flow_limit"] > 0
    watched.tracker.take(opened(1, server_side=True, peer=("10.0.0.2", 40001), local=("10.0.0.7", 9092))[0])
    watched.see(request(METADATA, 12, 1))
    assert f"{1:016x}" in [event["conn_id"] for event in watched.report()]


def test_what_a_fetch_session_keeps_of_a_count_is_reckoned() -> None:
    watched = Watched(60)
    watched.flows._place_bytes = 100 * MIB
    watched.flows._shares = Shares(100 * MIB)
    names = tuple(f"topic-{n}" for n in range(300))
    requests = [fetch(3, names, conn=conn) for conn in range(1, 42)]
    watched.see(requests[0])
    before = watched.flows._held_bytes

    def see_all() -> bool:
        for one in requests[1:]:
            watched.see(one)
        return True

    assert grown_by(see_all, 1) < watched.flows._held_bytes - before < 20 * MIB


def test_the_next_interval_has_the_place_again() -> None:
    watched = Watched(2)
    for _ in range(20):
        watched.see(request(METADATA, 12, 1), request(METADATA, 11, 2))
        assert [event["conn_id"] for event in watched.report()] == [f"{1:016x}", f"{2:016x}"]


def test_topics_beyond_those_of_one_event_are_counted_in_one_row() -> None:
    watched = Watched(1)
    watched.flows._place_bytes = 100 * MIB
    names = [f"topic-{n}" for n in range(TOPICS + 10)]
    watched.see(by_hand("Metadata", 4, {"Topics": [{"Name": name} for name in names]}))
    (event,) = watched.report()
    topics = event["topics"]
    assert isinstance(topics, list)
    assert len(topics) == TOPICS + 1
    assert (topics[-1]["topic"], topics[-1]["topic_id"], topics[-1]["requests"]) == (None, None, 1)
    assert watched.flows.losses["topic_limit"] == 10


def test_long_names_beyond_those_of_one_event_are_counted_in_one_row() -> None:
    watched = with_place(1)
    names = [f"{n:0256}" for n in range(CHARACTERS // 256 + 10)]
    for start in range(0, len(names), 200):
        watched.see(by_hand("Metadata", 4, {"Topics": [{"Name": name} for name in names[start : start + 200]]}))
    (event,) = watched.report()
    topics = event["topics"]
    assert isinstance(topics, list)
    assert sum(topic["requests"] for topic in topics if topic["topic"] is not None) == CHARACTERS // 256
    assert watched.flows.losses["topic_limit"] == 10
    assert len(encode(event)) < 2 * MIB


@pytest.mark.parametrize(("topics", "answers"), [(0, 0), (1, 0), (500, 0), (1, 200)])
def test_an_event_takes_no_more_than_was_reckoned(topics: int, answers: int) -> None:
    watched = with_place(40)
    for conn in range(1, 41):
        asked = {"Topics": [{"Name": f"topic-{n}"} for n in range(topics)]}
        answered = (response(METADATA, 12, conn, latency_us=int(1.1**n)) for n in range(answers))
        watched.see(by_hand("Metadata", 4, asked, conn), *answered)
    report = watched.flows.report()
    events: list[dict[str, object]] = []

    def take_all() -> bool:
        events.extend(report)
        return len(events) >= 40

    assert 0 < grown_by(take_all, 1) < sum(map(event_bytes, events))


def test_connections_beyond_the_bound_are_not_followed() -> None:
    tracker = Tracker(RESOLVER, bounds=FEW)
    for conn in range(1, 6):
        tracker.take(opened(conn)[0])
    assert tracker.known() == {1, 2, 3}
    assert tracker.losses["connection_limit"] == 2
    assert tracker.full
    tracker.gone(2)
    tracker.take(opened(6)[0])
    assert tracker.known() == {1, 3, 6}


def test_what_a_report_has_not_reached_counts_towards_the_bounds() -> None:
    tracker = Tracker(RESOLVER, bounds=FEW)
    tracker.take(opened(1)[0])
    tracker.gone(1)  # its close was lost: only the report keeps it
    tracker.take(opened(0, kind=SampleKind.RESET)[0])
    report = tracker.report()
    assert tracker.free == 1
    assert [event["kind"] for _, event in report] == ["open", "reset"]
    assert tracker.free == 3


def test_opens_and_closes_beyond_the_bound_are_counted_by_how() -> None:
    fed = Fed()
    fed.agent._tracker._bounds = FEW
    for conn in range(1, 9):
        fed.see(opened(conn), closed(conn, ts_ns=conn))
        fed.agent._tracker.gone(conn)
    fed.report()
    (agent,) = fed.events("agent")
    assert (len(fed.events("open")), len(fed.events("close"))) == (4, 4)
    assert agent["other"] == {"close/client/fin/local": 4, "open/client": 4}
    assert (agent["losses"]["close_limit"], agent["losses"]["open_limit"]) == (4, 4)
    assert agent["complete_since"] == agent["ts"]
    fed.report()
    assert fed.events("agent")[-1]["other"] == {}


def test_of_too_many_unfinished_frames_the_oldest_go() -> None:
    reassembler = Reassembler(limit_bytes=3000)
    whole = case(METADATA, 12, response=True)
    begun = {conn: message(whole, conn, sample_bytes=20) for conn in range(1, 11)}
    for records in begun.values():
        reassembler.join(records[:1])
    assert 0 < len(reassembler.unfinished()) < 5
    assert reassembler.losses["frame_limit"] == 10 - len(reassembler.unfinished())
    assert len(reassembler.join(begun[10][1:]).firsts) == 1
    assert len(reassembler.join(begun[1][1:]).firsts) == 0


def test_of_too_many_requests_in_flight_those_that_wait_longest_are_forgotten() -> None:
    tracker, reader = Tracker(RESOLVER), FrameReader()
    exchanges = Exchanges(tracker, TopicNames(), limit_bytes=20_000)
    for conn in range(1, 41):
        tracker.take(opened(conn)[0])
        assert not list(exchanges.pair(list(reader.read(request(METADATA, 12, conn, correlation_id=5)))))
    assert 0 < exchanges.losses["request_limit"] < 40

    def answered(conn: int) -> int:
        return len(list(exchanges.pair(list(reader.read(response(METADATA, 12, conn, correlation_id=5))))))

    assert (answered(1), answered(40)) == (0, 1)


def with_place(connections: int, learned_bytes: int = 100 * MIB) -> Watched:
    """Accepted connections, each of an address of its own, with a place of this size, and one for all counts."""
    watched = Watched(0)
    watched.tracker = Tracker(RESOLVER, bounds=replace(DEFAULT, learned_bytes=learned_bytes))
    watched.flows._tracker = watched.tracker
    watched.flows._place_bytes = 100 * MIB
    watched.flows._shares = Shares(100 * MIB)
    for conn in range(1, 1 + connections):
        watched.tracker.take(opened(conn, server_side=True, peer=(f"10.0.1.{conn}", 1), local=("10.0.0.7", 9092))[0])
    return watched


def let_all_go(watched: Watched, connections: int) -> None:
    for conn in range(1, 1 + connections):
        watched.tracker.gone(conn)
    list(watched.tracker.report())


@pytest.mark.parametrize("char", ["x", "\u00e9", "\N{PILE OF POO}"])
def test_what_connections_say_of_themselves_is_reckoned_and_given_back(char: str) -> None:
    watched = with_place(60)

    def text(kind: str, conn: int) -> str:
        return f"{kind}{conn:04}" + char * 250

    said = [
        (
            by_hand("Heartbeat", 4, {"GroupId": text("group", conn)}, conn),
            by_hand(
                "ApiVersions",
                3,
                {"ClientSoftwareName": text("name", conn), "ClientSoftwareVersion": text("version", conn)},
                conn,
            ),
            request(METADATA, 12, conn, client_id=text("client", conn)),
        )
        for conn in range(1, 61)
    ]
    place = watched.tracker.place

    def say(some: Sequence[tuple[Samples, ...]]) -> bool:
        for records in some:
            for one in records:
                watched.see(one)
        list(watched.flows.report())
        watched.reader = FrameReader(SUMMED)
        return True

    say(said[:1])
    before = place.used_bytes
    grown = grown_by(lambda: say(said[1:]), 1)
    assert grown < place.used_bytes - before < 59 * 6000
    let_all_go(watched, 60)
    assert place.used_bytes == 0


def test_texts_beyond_the_bound_are_null_and_counted_and_those_of_others_are_kept() -> None:
    watched = with_place(0, 20_000)
    for conn in range(1, 100):
        watched.tracker.take(opened(conn, server_side=True, peer=("10.0.0.1", conn), local=("10.0.0.7", 9092))[0])
        watched.see(request(METADATA, 12, conn, client_id=f"{conn:0200}"))
    watched.tracker.take(opened(100, server_side=True, peer=("10.0.0.2", 1), local=("10.0.0.7", 9092))[0])
    watched.see(request(METADATA, 12, 100))
    events = watched.report()
    unknown = [event for event in events if event["client"]["id"] is None]  # type: ignore[index]
    assert 0 < len(unknown) < 99
    assert len(unknown) == watched.tracker.losses["text_limit"]
    assert events[-1]["client"]["id"] is not None  # type: ignore[index]
    assert watched.tracker.place.used_bytes <= 20_000


def test_kafka_probe_knows_its_own_connections_also_beyond_the_bound() -> None:
    watched = with_place(1, 0)
    for _ in range(2):
        watched.see(request(METADATA, 12, 1, client_id="kafka-probe-agent-node-1"))
        (event,) = watched.report()
        assert event["internal"]
    let_all_go(watched, 1)
    assert watched.tracker.place.used_bytes == 0


@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 1), (1, 4), (1, 5), (1, 90), (8, 1), (200, 1)])
def test_what_a_fetch_session_holds_is_reckoned_and_given_back(topics: int, partitions: int) -> None:
    watched = with_place(40)

    def asked(conn: int) -> Samples:
        named = [
            {"Topic": f"{conn}-{n}".rjust(200, "x"), "Partitions": [{"Partition": 300 + p} for p in range(partitions)]}
            for n in range(topics)
        ]
        return by_hand("Fetch", 12, {"SessionEpoch": 0, "Topics": named}, conn)

    requests = [asked(conn) for conn in range(1, 41)]
    place = watched.tracker.place

    def ask(some: list[Samples]) -> bool:
        for one in some:
            watched.see(one)
        list(watched.flows.report())
        watched.reader = FrameReader(SUMMED)
        return True

    ask(requests[:1])
    before = place.used_bytes
    assert grown_by(lambda: ask(requests[1:]), 1) < place.used_bytes - before
    let_all_go(watched, 40)
    assert place.used_bytes == 0


def ask_in_all_versions(watched: Watched, names: tuple[str, ...]) -> None:
    watched.see(fetch(0, names))
    for version in range(7, 18):
        watched.see(by_hand("Fetch", version, {"SessionId": 7, "SessionEpoch": 1}))


def ask_for_one_after_the_other(watched: Watched, names: tuple[str, ...]) -> None:
    watched.see(fetch(0, names[:1]))
    for before, name in pairwise(names):
        watched.see(fetch(1, (name,), (before,)))


def hold_none_and_all_again(watched: Watched, names: tuple[str, ...]) -> None:
    for _ in range(3):
        watched.see(fetch(0, names), fetch(1, (), names))


@pytest.mark.parametrize("ask", [ask_in_all_versions, ask_for_one_after_the_other, hold_none_and_all_again])
def test_what_a_fetch_session_asked_for_is_reckoned_until_it_is_reported(
    ask: Callable[[Watched, tuple[str, ...]], None],
) -> None:
    watched = with_place(1)
    names = tuple(f"{n:0200}" for n in range(500))
    watched.see(fetch(0))
    (session,) = watched.sessions(1)
    list(watched.flows.report())
    place = watched.tracker.place
    before = place.used_bytes

    def take() -> object:
        ask(watched, names)
        taken = session.take()
        watched.flows._counts.clear()
        watched.reader = FrameReader(SUMMED)
        return taken

    assert grown_by(take, 1) < place.used_bytes - before
    session.forget()
    for _ in range(2):
        session.take()
    assert place.used_bytes == before


def test_topics_that_are_asked_for_one_after_the_other_find_no_place_beyond_the_bound() -> None:
    watched = with_place(1, 20_000)
    ask_for_one_after_the_other(watched, tuple(f"topic-{n}" for n in range(100)))
    assert watched.tracker.losses["partition_limit"] > 50
    assert watched.tracker.place.used_bytes < 20_000


def test_partitions_of_fetch_sessions_beyond_the_bound_are_counted() -> None:
    watched = with_place(4, 10_000)
    for conn in range(1, 5):
        watched.see(fetch(0, ("a", "b", "c", "d"), conn=conn))
    assert 0 < watched.tracker.losses["partition_limit"] < 16
    watched.report()
    let_all_go(watched, 4)
    assert watched.tracker.place.used_bytes == 0


@pytest.mark.parametrize("cluster_bytes", [0, 22, 256])
def test_names_of_topics_take_no_more_than_was_reckoned(cluster_bytes: int) -> None:
    names = TopicNames()

    def learn() -> TopicNames:
        for n in range(2000):
            names.add(f"{n:032x}", f"{n:0249}", "10.0.0.1", f"{n:0{cluster_bytes}}" if cluster_bytes else None)
        return names

    assert grown_by(learn, 1) < names._held_bytes < 2000 * 1500


def test_long_frames_that_end_at_once_are_not_decoded_at_once() -> None:
    """Each connection holds back the last record of a frame that names many topics."""
    fed = Fed()
    fed.agent._flows._place_bytes = 0
    topics = (20_000).to_bytes(4, "big") + b"\0\0" * 20_000 + b"\0"
    frames = [frame(conn, data=b"\0\4%04d" % conn + topics, api_key=METADATA, api_version=4) for conn in range(1, 33)]
    for conn, records in enumerate(frames, 1):
        fed.see(opened(conn), records[:-1])
    last = [records[-1:] for records in frames]
    gc.collect()
    tracemalloc.start()
    try:
        fed.see(*last)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < DECODED_BYTES + DEFAULT.shapes_bytes
    fed.report()
    assert sum(event["requests"] for event in fed.events("flow")) == len(frames)


class Named(WorkloadResolver):
    """Finds texts of a character for every process."""

    def __init__(self, char: str, characters: int, limit_bytes: int = DEFAULT.workloads_bytes) -> None:
        pods = Pods()
        pods.put(Pod("u1", frozenset(("in a pod",)), {**NAMELESS, "pod": "x" * 253, "labels": {"app": "x" * 63}}))
        super().__init__(pods=pods, limit_bytes=limit_bytes)
        self._text = char * characters

    def _resolve(self, owner: Owner) -> dict[str, object]:
        texts = {name: f"{name} {owner.pid}{self._text}" for name in ("exe", "cmdline", "cgroup", "unit")}
        return workload(f"{owner.pid}", pid=owner.pid, start_time=1 << 50 | owner.pid, pod_uid="in a pod", **texts)


def of_processes(*pids: int) -> list[Samples]:
    """Connections, each of another process."""
    return [opened(pid, peer=("10.0.0.1", pid), tgid=1000 + pid, cgroup_id=1 << 40 | pid) for pid in pids]


@pytest.mark.parametrize("characters", [0, 5000])
@pytest.mark.parametrize("char", ["x", "\u00e9", "\N{PILE OF POO}"])
def test_what_workloads_take_is_reckoned_and_given_back_by_the_last_who_holds_them(char: str, characters: int) -> None:
    resolver = Named(char, characters, 100 * MIB)
    records = [Owner(pid, 1 << 50 | pid, b"%d" % pid, pid, 0, 1 << 40, 0, b"x" * 92) for pid in range(1001, 1301)]

    def resolve_all() -> list[Mapping[str, object]]:
        found = [resolver.resolve(owner) for owner in records]
        orjson.dumps(found)  # it leaves the UTF-8 with each text
        return found

    assert grown_by(resolve_all, 1) < resolver.place.used_bytes < 300 * 16 * 1024
    held = resolve_all()
    resolver.name_pods()
    named = resolver.place.used_bytes
    assert {one["pod"] for one in held} == {"x" * 253}
    assert sum(map(workload_bytes, held)) == named
    resolver._recent.clear()
    assert resolver.place.used_bytes == named
    held.clear()
    assert resolver.place.used_bytes == 0


def test_connections_whose_process_has_no_place_have_no_workload_and_are_counted() -> None:
    resolver = Named("x", 1000, 100_000)
    tracker = Tracker(resolver)
    for record in of_processes(*range(1, 51)):
        tracker.take(record[0])
    events = [event["workload"] for _, event in tracker.report()]
    nobody = [event for event in events if event["pid"] is None]  # type: ignore[index]
    assert 0 < len(nobody) == resolver.losses["workload_limit"] < 50
    assert resolver.place.used_bytes <= 100_000
    events.clear()
    for pid in range(1, 51):
        tracker.gone(pid)
    tracker.take(of_processes(51)[0][0])
    ((_, event),) = list(tracker.report())
    assert event["workload"]["pid"] == 1051  # type: ignore[index]
    assert resolver.place.used_bytes < 50_000


def test_a_process_that_renames_itself_leaves_a_place_to_others() -> None:
    resolver = Named("x", 100, 100_000)
    tracker = Tracker(resolver)
    for conn in range(1, 101):
        tracker.take(opened(conn, tgid=7, comm=b"%d" % conn)[0])
    assert resolver.losses["workload_limit"] > 0
    for record in of_processes(*range(101, 106)):
        tracker.take(record[0])
    assert [event["workload"]["pid"] for _, event in tracker.report()][-5:] == [1101, 1102, 1103, 1104, 1105]  # type: ignore[index]


def test_a_process_that_nobody_holds_is_remembered_while_half_of_the_place_is_free() -> None:
    resolver = Named("x", 0, 100_000)
    first, *others = (Owner(pid, 0, b"", 0, 0, 0, 0, b"") for pid in range(1, 100))
    assert resolver.resolve(first) is resolver.resolve(first)
    for owner in others:
        resolver.resolve(owner)
    assert 40_000 < resolver.place.used_bytes < 60_000
    assert first not in resolver._held
    assert others[-1] in resolver._held
    assert not any(resolver.losses.values())


def test_closed_listeners_take_no_more_than_a_mebibyte() -> None:
    pending = PendingCloses(RESOLVER)
    addresses = (f"2001:db8:{n:x}:4444:5555:6666:7777:8888" for n in range(600 * 12))
    records = [listener(closed=True, local=(next(addresses), 1024 + n)) for n in range(600) for _ in range(12)]

    def listen() -> bool:
        for record in records:
            pending.listen(record[0])
        return True

    assert 0 < grown_by(listen, 1) < MIB


def test_what_leaves_a_place_may_be_taken_again() -> None:
    place = SharedBudget(1000, Counter())
    assert place.take("10.0.0.1", 600, "text_limit")
    assert not place.take("10.0.0.1", 400, "text_limit")
    place.give_back(600)
    assert place.used_bytes == 0
    assert place.take("10.0.0.1", 400, "text_limit")


def test_groups_of_open_connections_are_bounded() -> None:
    tracker = Tracker(RESOLVER, bounds=replace(DEFAULT, groups=2))
    for conn in range(1, 50):
        tracker.take(opened(conn, peer=(f"10.{conn}.0.1", 9092), local=(f"10.0.{conn}.1", 40001))[0])
    groups = tracker.open_now()
    assert len(groups) <= 2 * 2 + 1
    assert sum(int(str(group["count"])) for group in groups) == 49
    for conn in range(1, 50):
        tracker.close(closed(conn)[0])
    assert tracker.open_now() == []
