from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kafka_probe.connections.identity import network as of_agents
from kafka_probe_pipeline import connections, spark_session, storms
from kafka_probe_pipeline.alerts import alert
from kafka_probe_pipeline.incidents import CRASHES, IDLE, RECONNECTS, RESTART
from kafka_probe_pipeline.scopes import NAME_CHARACTERS, network, scopes_of_connection
from kafka_probe_pipeline.source import TEXT_CHARACTERS
from tests.builders.connection_ends import BY_ITSELF, EXITED, RESET, STOPPED
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, SECOND_US, Event, agent_event, closed, opened
from tests.builders.storm_events import crashes, dropped, open_ends, reports, workload
from tests.pipeline.history import History, only

pytestmark = pytest.mark.spark


def test_an_idle_storm_is_one_alert_from_the_threshold_to_the_quiet_after_it(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(*open_ends(range(400)), *reports(range(400), until_s=-5))

    assert history.storms_after(*dropped(range(19)), *reports(range(19, 400)), at_s=2) == []
    storm = only(history.storms_after(*dropped(range(19, 60)), *reports(range(60, 400)), at_s=4))
    assert (storm["kind"], storm["subject"], storm["change"], storm["count"]) == (
        IDLE, "middlebox_reset", "opened", 60,
    )  # fmt: skip
    # Two of three clients are of this pod, and a bit more of them were hit than of the others.
    assert (storm["scope"], storm["population"]) == ("workload java team/orders-1", 266)
    assert storm["share"] == pytest.approx(40 / 266)
    assert storm["idle_us"] == pytest.approx(30.7 * SECOND_US, rel=0.02)
    assert [(hit["name"], hit["count"]) for hit in storm["workloads"]] == [
        ("java team/orders-1", 40), ("java team/orders-2", 20),
    ]  # fmt: skip
    assert [hit["name"] for hit in storm["brokers"]] == ["10.0.0.9:9092"]
    assert [hit["name"] for hit in storm["networks"]] == ["10.9.0.0/24"]
    assert storm["both_ends"] == 60

    # Another agent reports later what was closed at the same time, some of it before.
    later = dropped(range(60, 300), at_s=-1)
    grown = only(history.storms_after(*later, *reports(range(300, 400), until_s=9), at_s=9))
    assert (grown["id"], grown["change"], grown["count"], grown["population"]) == (storm["id"], "updated", 300, 266)
    grown_alert = alert(grown)
    assert grown_alert.summary.startswith("300 connections closed after 30.7 s of silence (middlebox_reset): ")
    assert "75 % of the 266 connections of " in grown_alert.summary
    assert "connections.max.idle.ms of at most 24560" in grown_alert.remedy

    still = only(history.storms_after(agent_event(BROKER, until_s=40), at_s=40))
    assert (still["batch_id"], still["state"], still["count"]) == (grown["batch_id"], "active", 300)
    over = only(history.storms_after(agent_event(BROKER, until_s=70), at_s=70))
    assert (over["id"], over["change"], over["state"], over["count"]) == (storm["id"], "resolved", "resolved", 300)
    assert alert(over).labels() == grown_alert.labels()


def test_a_host_whose_clock_is_ahead_hides_no_closes_of_other_hosts(spark: SparkSession) -> None:
    history = History(spark)
    history.batch(*open_ends(range(400)))
    ahead = only(history.storms_after(*dropped(range(30), at_s=900), *reports(range(30, 400)), at_s=2))
    grown = only(history.storms_after(*dropped(range(30, 60)), *reports(range(60, 400)), at_s=4))
    assert (ahead["count"], grown["count"], grown["id"]) == (30, 60, ahead["id"])


def test_connections_of_a_host_whose_clock_is_ahead_count_in_the_share_of_a_storm(spark: SparkSession) -> None:
    history = History(spark, closed_limit=1_000)
    history.batch(*(opened(CLIENT, number, workload=workload(number)) for number in range(400)))
    young = BY_ITSELF | {"ts": NOON_US + 902 * SECOND_US, "age_us": 600 * SECOND_US}
    history.batch(*dropped(range(60), at_s=900, facts=young), at_s=2)
    storm = only(history.storms_after(*reports(range(60, 400), until_s=925), at_s=20))
    assert (storm["subject"], storm["count"], storm["population"]) == ("client_idle_limit", 60, 266)
    # Closed by its clock after the storm of another host began, but long before that by Kafka's.
    history.storms_after(agent_event(CLIENT, until_s=1000), at_s=400)
    history.batch(*dropped(range(100, 160), at_s=398, facts=BY_ITSELF), at_s=400)
    found = history.storms_after(*reports([*range(60, 100), *range(160, 400)], until_s=1400), at_s=420)
    assert [storm["population"] for storm in found if storm["change"] == "opened"] == [226]


def test_a_storm_that_goes_on_for_long_keeps_its_share_when_most_of_it_is_forgotten(spark: SparkSession) -> None:
    history = History(spark, closed_limit=30)
    history.batch(*open_ends(range(60)), *reports(range(60), until_s=-5))
    storm = only(history.storms_after(*dropped(range(40)), *reports(range(40, 60), until_s=5), at_s=5))
    history.batch(*(closed(BROKER, number) for number in range(40)), at_s=10)
    grown = only(history.storms_after(*dropped(range(40, 50), at_s=40), agent_event(BROKER, until_s=45), at_s=45))
    assert (grown["change"], grown["count"]) == ("updated", 50)
    for name in ("share", "population", "scope"):
        assert grown[name] == storm[name] is not None


def test_a_restart_and_a_normal_stop_and_churn_are_no_idle_storms(spark: SparkSession) -> None:
    def pair(number: int, first: str, other_broker: str = "10.0.0.8:9092", **facts: object) -> list[Event]:
        other = CLIENT if first == BROKER else BROKER
        process = {"workload": workload(number)} if first == CLIENT else {}
        local = {"local": other_broker} if first == BROKER else {}
        return [closed(first, number, **{**process, **local, **facts}), closed(other, number)]

    restart = [event for number in range(300) for event in pair(number, BROKER, **STOPPED)]
    stop = [
        event
        for number in range(300, 600)
        for event in pair(number, CLIENT, closed_by="local", owner_ended=True, silence_us=20 * SECOND_US)
    ]
    # One connection a second reaches the client's limit, and others stop in the middle of their work.
    churn = [
        event
        for number in range(600, 720)
        for event in pair(
            number,
            CLIENT,
            closed_by="local",
            closing_ts=NOON_US + (number - 720) * 6 * SECOND_US,
            silence_us=9 * SECOND_US if number % 2 else SECOND_US // 10,
        )
    ]
    words = (agent_event(CLIENT), agent_event(BROKER))
    storm = only(History(spark).storms_after(*restart, *stop, *churn, *words))
    assert (storm["kind"], storm["subject"], storm["count"]) == (RESTART, "10.0.0.8:9092", 300)
    assert "because broker 10.0.0.8:9092 stopped" in alert(storm).summary


def test_a_crash_loop_and_a_client_that_connects_again_and_again_are_named_as_such(spark: SparkSession) -> None:
    def crash(number: int) -> list[Event]:
        return [closed(CLIENT, number, **EXITED, workload=workload(0)), closed(BROKER, number)]

    def reconnect(number: int) -> list[Event]:
        brief = {"closed_by": "local", "silence_us": SECOND_US, "age_us": SECOND_US}
        return [closed(CLIENT, number, **brief, workload=workload(1)), closed(BROKER, number)]

    reported = [
        *(event for n in range(25) for event in crash(n)),
        *(event for n in range(25, 130) for event in reconnect(n)),
    ]
    crashes, reconnects = History(spark).storms_after(*reported)
    assert (crashes["kind"], crashes["subject"], crashes["count"]) == (CRASHES, "java team/orders-2", 25)
    assert (reconnects["kind"], reconnects["subject"], reconnects["count"]) == (RECONNECTS, "java team/orders-1", 105)
    assert "processes of java team/orders-2" in alert(crashes).summary


def test_of_too_many_storms_the_largest_are_reported_and_the_others_counted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storms, "MOST_OF_KIND", 2)
    history = History(spark)
    first = history.storms_after(*crashes(1, range(30)), *crashes(2, range(30, 50)), *crashes(3, range(50, 90)))
    assert {storm["count"] for storm in first} == {30, 40}
    assert "Left out 1 possible storms" in caplog.text
    again = history.storms_after(*crashes(2, range(90, 200)), at_s=2)
    assert {storm["id"] for storm in again} == {storm["id"] for storm in first}


@pytest.mark.parametrize(("facts", "counts"), [(RESET, [300]), (BY_ITSELF, [])], ids=["reset", "limit"])
def test_of_a_few_of_many_only_those_that_a_middlebox_drops_are_a_storm_also_if_only_agents_count_the_many(
    spark: SparkSession, facts: Event, counts: list[int]
) -> None:
    many = [{"side": "server", "local": "10.0.0.9:9092", "peer_network": "10.9.0.0/24", "count": 10_000}]
    many += [{"side": "client", "local": "10.0.1.1", "workload": workload(n), "count": 5000} for n in (0, 1)]
    history = History(spark)
    history.batch(*open_ends(range(300)))
    found = history.storms_after(*dropped(range(300), facts=facts), agent_event(CLIENT), agent_event(BROKER, open=many))
    assert [storm["count"] for storm in found] == counts
    assert all("4 % of the 5200 connections of workload" in alert(storm).summary for storm in found)


@pytest.mark.parametrize(
    ("facts", "others", "share"),
    [(RESET, 9_970, "less than 1 % of all 10000"), (BY_ITSELF, 270, "10 % of all 300"), (BY_ITSELF, 271, None)],
    ids=["reset", "limit of a tenth", "limit of fewer"],
)
def test_one_idle_age_across_brokers_networks_and_small_workloads_is_one_alert_that_names_those_hit_most(
    spark: SparkSession, facts: Event, others: int, share: str | None
) -> None:
    def ends(number: int) -> list[Event]:
        group = number // 2 if number < 4 else number  # two brokers, networks and pods are hit twice
        broker, process = f"10.0.{group}.9:9092", workload(0) | {"pod": f"pod-{group}"}
        client, server = {"peer": broker, "workload": process}, {"local": broker, "peer": f"10.9.{group}.1:{number}"}
        close = closed(CLIENT, number, **facts, **client)
        return [opened(CLIENT, number, **client), opened(BROKER, number, **server), close]

    reported = [event for number in range(30) for event in ends(number)]
    many = [{"side": "server", "local": "10.1.0.9:9092", "peer_network": "10.9.99.0/24", "count": others}]
    found = History(spark).storms_after(*reported, agent_event(CLIENT), agent_event(BROKER, open=many))
    if share is None:
        assert found == []
        return
    storm = only(found)
    assert (storm["scope"], storm["count"]) == ("all connections", 30)
    assert f"; {share} connections; both ends of 30 were watched" in alert(storm).summary
    for column, most in [
        ("workloads", ["java team/pod-1", "java team/pod-0"]),
        ("brokers", ["10.0.1.9:9092", "10.0.0.9:9092"]),
        ("networks", ["10.9.1.0/24", "10.9.0.0/24"]),
    ]:
        assert [(hit["name"], hit["count"]) for hit in storm[column][:2]] == [(name, 2) for name in most]
        assert [hit["count"] for hit in storm[column][2:]] == [1, 1, 1]


@pytest.mark.parametrize("side", [CLIENT, BROKER])
def test_connections_that_no_agent_counts_are_counted_by_what_is_reported_of_each(
    spark: SparkSession, side: str
) -> None:
    """Only the clients or only the brokers have agents; one host has a tenth of its connections closed."""

    def end(kind: Callable[..., Event], number: int, **facts: object) -> Event:
        broker = "10.0.1.9:9092" if number < 200 else "10.0.2.9:9092"
        other = {"peer": broker} if side == CLIENT else {"peer": f"10.9.0.{number // 200}:{number}"}
        return kind(side, number, **other, **facts)

    many = {"side": "client" if side == CLIENT else "server", "local": "10.0.1.1", "workload": {"comm": "app"}}
    if side == BROKER:
        many |= {"local": "10.0.0.9:9092", "peer_network": "10.9.0.0/24"}
    history = History(spark)
    history.batch(*(end(opened, number) for number in range(400)), agent_event(side, open=[many | {"count": 4000}]))
    closes = [end(closed, number, **BY_ITSELF) for number in range(20)]
    words = agent_event(side, open=[many | {"count": 4000}], until_s=20)
    history.batch(*closes, at_s=2)
    storm = only(history.storms_after(words, at_s=20))
    name = "broker 10.0.1.9:9092" if side == CLIENT else "workload behind 10.9.0.0"
    assert (storm["scope"], storm["population"], storm["share"]) == (name, 200, 0.1)


def test_a_network_that_agents_sum_up_with_others_has_no_share_of_its_own(spark: SparkSession) -> None:
    rest = {"side": "server", "local": "10.0.0.9:9092", "peer_network": None, "count": 5000}
    history = History(spark)
    history.batch(*open_ends(range(20)))
    found = history.storms_after(
        *dropped(range(20), facts=BY_ITSELF), agent_event(CLIENT), agent_event(BROKER, open=[rest])
    )
    assert found == []


@pytest.mark.parametrize(("other_s", "counts"), [(11.5, [40]), (12.5, [20, 20])])
def test_idle_ages_are_the_same_that_differ_by_a_tenth_and_two_seconds(
    spark: SparkSession, other_s: float, counts: list[int]
) -> None:
    history, ages_s = History(spark), (9, other_s)
    history.batch(*open_ends(range(40)))
    found: list[int] = []
    for number, age_s in enumerate(ages_s):
        age_us = round(age_s * SECOND_US)
        closes = [closed(CLIENT, n, how="rst_received", silence_us=age_us) for n in range(number, 40, 2)]
        found = [storm["count"] for storm in history.storms_after(*closes, agent_event(BROKER))]
    assert found == counts


def test_networks_are_written_as_the_agents_write_them(spark: SparkSession) -> None:
    v6 = ("2001:db8::7", "2001:db8:1:2:3::7", "::1", "2001::1:2:3:4:5", "2001:0:0:10::", "fe80::1", "1:2:3:4:5:6:7:8")
    endpoints = ["10.1.2.3:9", *(f"[{address}]:9" for address in v6)]
    rows = spark.createDataFrame([(endpoint,) for endpoint in endpoints], "a string")
    assert [row[0] for row in rows.select(network(rows["a"])).collect()] == [*map(of_agents, endpoints)]


def test_names_of_what_a_storm_hit_are_cut_after_512_characters(spark: SparkSession) -> None:
    long = "x" * TEXT_CHARACTERS
    client = {"workload": {"comm": long, "namespace": "team", "pod": long}, "peer": long}
    hit = spark_session.rows(spark, [{"client": client}], connections.SCHEMA).select(F.explode(scopes_of_connection()))
    names = {row["scope"]: row["name"] for row in hit.select("col.*").collect()}
    assert names == {
        "broker": long[:NAME_CHARACTERS],
        "workload": long[:NAME_CHARACTERS],
        "network": None,
        "all": "connections",
    }
