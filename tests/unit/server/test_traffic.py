"""Events become sums by labels: each counted once, with bounded label sets, and totals never decrease."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.events import INTERNAL_CLIENT, bucket_of
from kafka_probe.server.label_tables import LABEL_BYTES, OTHER, UNUSED_US, Labels
from kafka_probe.server.traffic import BOUNDS_S, ERRORS, Traffic
from tests.builders.events import (
    NOW_US,
    SECOND_US,
    agent,
    client,
    close,
    flow,
    open_now,
    opened,
    passed,
    reset,
    topic,
    workload,
)


def traffic(*events: Any, limit: int = 1000) -> Traffic:
    summed = Traffic(limit)
    summed.add(events)
    return summed


def by_workload(summed: Traffic) -> dict[Labels, int]:
    return {labels: row.requests for labels, row in summed.workloads}


def test_flows_add_up_by_side_and_api() -> None:
    summed = traffic(
        flow(),
        flow(requests=5, topics=[topic(records=3), topic("payments", records=4)]),
        flow(side="server"),
        flow(api="Fetch"),
    )
    produced = summed.apis["client", "Produce"]
    assert (produced.requests, produced.responses, produced.records) == (15, 18, 7)
    assert (produced.request_bytes, produced.response_bytes) == (8000, 1800)
    assert summed.apis.keys() == {("client", "Produce"), ("server", "Produce"), ("client", "Fetch")}


def test_a_repeated_open_is_no_new_connection() -> None:
    summed = traffic(opened(), opened(still_open_ts=NOW_US), opened())
    assert summed.opened["client",] == 2


def test_what_exceeds_the_budgets_of_the_agent_is_counted_under_other() -> None:
    nowhere: dict[str, Any] = {"conn_id": None, "local": None, "peer": None}
    summed = traffic(
        flow(**nowhere, topics=[topic(None, requests=7)]),
        agent(other={"close/server/fin/peer": 3, "open/server": 2, "reset": 4}),
    )
    assert by_workload(summed) == {("client", OTHER, OTHER, "Produce"): 10}
    assert [(labels, row.requests) for labels, row in summed.topics] == [
        (("client", OTHER, OTHER, "Produce", OTHER), 7)
    ]
    assert (summed.closed["server", "fin", "peer"], summed.opened["server",], summed.resets) == (3, 2, 4)
    assert [(labels, row.count) for labels, row in summed.closes] == [(("server", OTHER, OTHER, "fin", "peer"), 3)]


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, ""),
        ({"unit": "kafka.service"}, "kafka.service"),
        ({"unit": "docker-c0ffee.scope", "container_id": "c0ffee" * 10}, "c0ffeec0ffee"),
        ({"container_id": "c0ffee" * 10, "pod": "billing-0", "namespace": "shop"}, "shop/billing-0"),
        ({"pod": "billing-7c9-x2x", "owner_name": "billing", "namespace": "shop"}, "shop/billing"),
    ],
)
def test_a_workload_is_named_by_what_says_most_and_its_command(fields: dict[str, object], label: str) -> None:
    summed = traffic(flow(workload=workload("python", **fields)))
    assert by_workload(summed) == {("client", label, "python", "Produce"): 10}


def test_processes_that_look_the_same_count_together() -> None:
    summed = traffic(flow(workload=workload(pid=1)), flow(workload=workload(pid=2)))
    assert by_workload(summed) == {("client", "", "java", "Produce"): 20}


def test_what_has_no_name_is_counted_too() -> None:
    nobody = workload(None, pid=None)
    summed = traffic(flow(api=None, workload=nobody))
    assert by_workload(summed) == {("client", "", "", "unknown"): 10}


def test_own_requests_count_only_as_such_and_own_closes_not_at_all() -> None:
    summed = traffic(flow(api=None, internal=True), close(client=client(f"{INTERNAL_CLIENT}sink")))
    assert (by_workload(summed), summed.apis, summed.closed.total()) == ({}, {}, 0)
    assert summed.internal_requests == {("client",): 10, ("server",): 0}


def test_each_topic_has_its_own_sums_and_its_id_as_name_until_there_is_one() -> None:
    summed = traffic(flow(topics=[topic(), topic(None, topic_id="ab" * 16, records=1, bytes=20, uncounted_bytes=20)]))
    rows = {labels[-1]: row for labels, row in summed.topics}
    assert (rows["orders"].requests, rows["orders"].records, rows["orders"].bytes) == (10, 50, 3000)
    assert (rows["ab" * 16].records, rows["ab" * 16].uncounted_bytes) == (1, 20)


def test_a_topic_that_is_only_named_in_an_answer_is_no_traffic() -> None:
    nothing = {"records": 0, "bytes": 0}
    names = [
        topic("all-there-are", requests=0, **nothing),
        topic("asked-for", **nothing),
        topic("gone", requests=0, errors={"3": 1}),
    ]
    summed = traffic(flow(api="Metadata", topics=names))
    assert {labels[-1] for labels, _ in summed.topics} == {"asked-for", "gone"}


def test_errors_have_kafkas_names_and_no_more_names_than_kafka_has() -> None:
    summed = traffic(flow(errors={"6": 2, "-1": 1, "30000": 1, "30001": 3}, topics=[topic(errors={"6": 2})]))
    errors = {"NOT_LEADER_OR_FOLLOWER": 2, "UNKNOWN_SERVER_ERROR": 1, "unknown": 4}
    assert summed.apis["client", "Produce"].errors == errors
    assert [row.errors for _, row in summed.workloads] == [errors]
    assert [row.errors for _, row in summed.topics] == [{"NOT_LEADER_OR_FOLLOWER": 2}]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_latencies_are_counted_within_five_percent_of_a_bound(latencies_us: list[int]) -> None:
    buckets = Counter(str(bucket_of(latency)) for latency in latencies_us)
    ((_, row),) = traffic(flow(latency=dict(buckets))).workloads
    assert sum(row.latency.counts) == len(latencies_us)
    for number, bound in enumerate(BOUNDS_S, 1):
        below, above = (sum(us / 1e6 < bound * f for us in latencies_us) for f in (0.952, 1.048))
        assert below <= sum(row.latency.counts[:number]) <= above
    # what is below 1 µs counts as 1 µs
    exact_s = sum(latencies_us) / 1e6
    assert abs(row.latency.sum_s - exact_s) <= 0.0434 * exact_s + 1.05e-6 * len(latencies_us)


def test_a_fetch_that_waited_in_vain_is_no_latency() -> None:
    ((_, row),) = traffic(flow(api="Fetch", latency_empty={str(bucket_of(500_000)): 3})).workloads
    assert sum(row.latency.counts) == 0
    assert sum(row.latency_empty.counts) == 3


def test_connections_are_counted_by_how_they_ended_and_by_whom() -> None:
    reset = close(how="rst_received", closed_by="peer")
    summed = traffic(close(), close(), reset, close(side="server", workload=workload("python")))
    assert +summed.closed == {
        ("client", "fin", "local"): 2,
        ("client", "rst_received", "peer"): 1,
        ("server", "fin", "local"): 1,
    }
    assert {labels: row.count for labels, row in summed.closes} == {
        ("client", "", "java", "fin", "local"): 2,
        ("client", "", "java", "rst_received", "peer"): 1,
        ("server", "", "python", "fin", "local"): 1,
    }


def test_a_connection_that_was_open_before_the_agent_was_not_opened() -> None:
    summed = traffic(opened(), opened("listed"), opened("midstream"), reset())
    assert summed.opened == {("client",): 1, ("server",): 0}
    assert summed.resets == 1


def test_open_connections_are_those_of_the_last_interval() -> None:
    summed = traffic(agent(open=[open_now(5)]), agent(open=[open_now(2), open_now(1, pid=8), open_now(4, "server")]))
    assert summed.open == {("client", "", "java"): 3, ("server", "", "java"): 4}


def test_a_label_set_has_few_names_of_errors_and_counts_all() -> None:
    errors = {str(code): 1 for code in range(1, 20)}
    summed = traffic(flow(errors=errors, topics=[topic(errors=errors)]))
    for _, row in (*summed.workloads, *summed.topics):
        assert len(row.errors) == ERRORS + 1
        assert sum(row.errors.values()) == 19
        assert row.errors[OTHER] == 19 - ERRORS
    assert len(summed.apis["client", "Produce"].errors) == 19


def test_long_labels_leave_space_for_fewer_label_sets_and_give_it_back() -> None:
    summed = traffic(*(flow(workload=workload(unit=f"{number:0200}")) for number in range(10)), limit=10)
    assert len(summed.workloads) == 10 * LABEL_BYTES // len("client" + "0" * 200 + "java" + "Produce")
    assert sum(by_workload(summed).values()) == 100
    summed.add([passed(UNUSED_US)])
    summed.add([flow(workload=workload(f"w{number}")) for number in range(10)])
    assert len(summed.workloads) == 10


def test_what_does_not_fit_is_counted_under_other() -> None:
    many = [flow(workload=workload(f"job-{n}"), topics=[topic(f"topic-{n}")]) for n in range(5)]
    opens = agent(open=[open_now(10 - n, comm=f"job-{n}") for n in range(5)])
    summed = traffic(*many, *many, *(close(workload=workload(f"job-{n}")) for n in range(5)), opens, limit=2)
    others = ("client", OTHER, OTHER)
    assert by_workload(summed) == {
        ("client", "", "job-0", "Produce"): 20,
        ("client", "", "job-1", "Produce"): 20,
        (*others, "Produce"): 60,
    }
    assert {labels[-1]: row.requests for labels, row in summed.topics} == {"topic-0": 20, "topic-1": 20, OTHER: 60}
    assert {labels: row.count for labels, row in summed.closes}[*others, "fin", "local"] == 3
    assert summed.open == {("client", "", "job-0"): 10, ("client", "", "job-1"): 9, others: 21}


FLOWS = st.builds(
    lambda job, api, side, topics, requests, ts: flow(
        NOW_US + ts,
        workload=workload(f"job-{job}"),
        api=api,
        side=side,
        requests=requests,
        topics=[topic(f"topic-{n}", requests=requests, records=n) for n in topics],
    ),
    st.integers(0, 5),
    st.sampled_from(("Produce", "Fetch", "Metadata")),
    st.sampled_from(("client", "server")),
    st.lists(st.integers(0, 9), max_size=3, unique=True),
    st.integers(0, 1000),
    st.integers(0, 10),
)


@given(st.lists(FLOWS, max_size=30), st.integers(1, 8))
def test_sums_over_workloads_and_topics_are_right_with_any_limit(flows: list[Any], limit: int) -> None:
    summed = traffic(*flows, limit=limit)
    wanted: Counter[Labels] = Counter()
    asked: Counter[Labels] = Counter()
    for each in flows:
        wanted[each["side"], each["api"]] += each["requests"]
        asked[each["side"], each["api"]] += each["requests"] * len(each["topics"])
    for rows, counts in ((summed.workloads, wanted), (summed.topics, asked), (summed.client_topics, asked)):
        found: Counter[Labels] = Counter()
        for labels, row in rows:
            found[labels[0], labels[3]] += row.requests
        assert +found == +counts
        assert len(rows) <= limit
    assert {labels: row.requests for labels, row in summed.apis.items()} == wanted


@given(st.lists(FLOWS, max_size=30), st.integers(1, 8))
def test_no_total_goes_back_when_workloads_leave(flows: list[Any], limit: int) -> None:
    summed = Traffic(limit)
    before: Counter[Labels] = Counter()
    for each in flows:
        summed.add([each, passed(UNUSED_US // 3)])
        totals = Counter({labels: row.requests for labels, row in summed.apis.items()})
        assert totals >= before
        before = totals


@pytest.mark.parametrize("step_us", [0, 2 * UNUSED_US, -2 * UNUSED_US])
def test_series_end_two_hours_after_the_last_request_whatever_the_wall_clock_does(step_us: int) -> None:
    summed = traffic(flow(topics=[topic()]), close(), agent())
    summed.add([passed(UNUSED_US - 6 * SECOND_US, until_us=NOW_US + step_us)])
    assert len(by_workload(summed)) == 1
    summed.add([passed(6 * SECOND_US, until_us=NOW_US + step_us)])
    assert by_workload(summed) == {}
    assert [*summed.clients, *summed.topics, *summed.client_topics, *summed.closes] == []
    assert summed.apis["client", "Produce"].requests == 10
    assert summed.closed["client", "fin", "local"] == 1


def test_a_client_that_leaves_is_dropped_and_starts_at_zero_when_it_comes_back() -> None:
    summed = traffic(flow(), agent(), limit=1)
    summed.add([agent(), passed(UNUSED_US)])
    summed.add([flow(workload=workload("python")), flow(requests=1)])
    assert by_workload(summed) == {
        ("client", "", "python", "Produce"): 10,
        ("client", OTHER, OTHER, "Produce"): 1,
    }


def test_clients_have_sums_by_id_library_and_group_at_both_ends() -> None:
    broker = {"side": "server", "workload": workload("java")}
    summed = traffic(
        flow(**broker, api="Fetch", group="g", errors={"6": 2}, topics=[topic(bytes=7)]),
        flow(**broker, api="Fetch", group="g", local="10.0.0.7:2"),
        flow(**broker, client={"id": None, "software_name": None, "software_version": None}),
        flow(client=client("other"), group="other", requests=3),
    )
    rows = {labels: (row.requests, row.errors) for labels, row in summed.clients}
    assert rows == {
        ("server", "billing", "librdkafka 2.5", "g"): (20, {"NOT_LEADER_OR_FOLLOWER": 2}),
        ("server", "", "", ""): (10, {}),
        ("client", "other", "librdkafka 2.5", "other"): (3, {}),
    }
    ((labels, row),) = summed.client_topics
    assert labels == ("server", "billing", "g", "Fetch", "orders")
    assert (row.requests, row.bytes) == (10, 7)
