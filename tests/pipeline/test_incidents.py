"""The bounds of what Spark counts for storms: all cases of a test are kinds or subjects of one DataFrame."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from kafka_probe_pipeline import agents, connections, incidents, spark_session
from kafka_probe_pipeline.config import PipelineConfig, load
from kafka_probe_pipeline.incidents import CRASHES, IDLE, RECONNECTS, RESTART
from kafka_probe_pipeline.source import Clock, struct_of
from tests.builders.spark_events import NOON_US, SECOND_US, Event

pytestmark = pytest.mark.spark

CONFIG = load({})
CLOCK = Clock(1, NOON_US)
_LONG, _STRING, _BOOL = T.LongType(), T.StringType(), T.BooleanType()
_SCOPES = T.ArrayType(struct_of({"scope": _STRING, "name": _STRING, "counted": _BOOL}))
_INCIDENT = struct_of(
    {
        **dict.fromkeys(("kind", "subject", "cause", "evidence"), _STRING),
        **dict.fromkeys(("level", "given_in", "judged_us", "closed_us", "idle_us"), _LONG),
        "both": _BOOL,
        "scopes": _SCOPES,
    }
)
# Rows of `incidents.closed_since`.
_CLOSED = struct_of(
    {**dict.fromkeys(("id", "scope", "name"), _STRING), "hits": _LONG, "closed": _LONG, "counted": _BOOL}
)


def incident(subject: str | None = "middlebox_reset", **facts: object) -> Event:
    """Return a row of `incidents.incidents`, of noon."""
    at = dict.fromkeys(("judged_us", "closed_us"), NOON_US)
    names = {"kind": IDLE, "subject": subject, "cause": "middlebox_reset", "evidence": "", "both": True}
    return names | at | {"level": 1000, "given_in": 1, "idle_us": 30 * SECOND_US, "scopes": []} | facts


def storm(subject: str | None = "middlebox_reset", **facts: object) -> Event:
    return {"id": subject, "kind": IDLE, "subject": subject, "level": 1000, "since_us": NOON_US} | facts


def rows(spark: SparkSession, *of: Event) -> DataFrame:
    return spark_session.rows(spark, of, _INCIDENT)


def candidates(
    spark: SparkSession, *of: Event, storms: Iterable[Event] = (), config: PipelineConfig = CONFIG
) -> set[str]:
    """Return the subjects of the candidates."""
    found = incidents.candidates(rows(spark, *of), incidents.rows(spark, storms), CLOCK, config)
    return {row["subject"] for row in found}


def test_a_candidate_has_at_least_the_number_of_its_kind(spark: SparkSession) -> None:
    most = {IDLE: 20, RESTART: 20, CRASHES: 20, RECONNECTS: 100}
    enough = [incident(f"enough {kind}", kind=kind) for kind, count in most.items() for _ in range(count)]
    few = [incident(f"few {kind}", kind=kind) for kind, count in most.items() for _ in range(count - 1)]
    assert candidates(spark, *enough, *few) == {f"enough {kind}" for kind in most}


@pytest.mark.parametrize(("storm_window", "storm_quiet"), [(40, 60), (60, 40)])
def test_verdicts_count_for_the_window_as_long_as_their_storm_would_not_be_over(
    spark: SparkSession, storm_window: float, storm_quiet: float
) -> None:
    config = load({"storm_window": storm_window, "storm_quiet": storm_quiet})
    of = [incident(str(us), judged_us=NOON_US - us) for us in (39_999_999, 40_000_000)] * 20
    assert candidates(spark, *of, config=config) == {"39999999"}


def test_a_candidate_has_the_largest_cells(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "MOST_CELLS", 2)
    of = [incident(level=1000 * number) for number in range(1, 10) for _ in range(number)]
    (row,) = incidents.candidates(rows(spark, *of), incidents.rows(spark, ()), CLOCK, CONFIG)
    assert [(cell["closes"], cell["level"]) for cell in row["cells"]] == [(9, 9000), (8, 8000)]


def test_closes_at_the_idle_age_of_a_storm_are_no_candidates_whenever_they_were(spark: SparkSession) -> None:
    old = [incident("a", closed_us=NOON_US - 3600 * SECOND_US)] * 20
    assert candidates(spark, *old, storms=[storm("a")]) == set()
    assert candidates(spark, *old, storms=[storm("a", level=1096)]) == {"a"}
    assert candidates(spark, *[incident("a"), incident("b"), incident(None)] * 20, storms=[storm("a")]) == {"b", None}


def test_a_candidate_has_what_closed_at_one_level_between_starts_of_windows(spark: SparkSession) -> None:
    of = [incident(closed_us=NOON_US + us) for us in (9_999_999, 0, 10_000_000)]
    other = [incident(level=2000, closed_us=NOON_US - 1)] * 18
    (row,) = incidents.candidates(rows(spark, *of, *other), incidents.rows(spark, ()), CLOCK, CONFIG)
    noon = NOON_US // 10_000_000
    assert (row["kind"], row["count"]) == (IDLE, 21)
    assert {*map(tuple, row["cells"])} == {
        (2, noon, 1000, NOON_US), (1, noon + 1, 1000, NOON_US + 10_000_000), (18, noon - 1, 2000, NOON_US - 1),
    }  # fmt: skip


def test_the_driver_gets_the_largest_candidates_and_idle_ones_before_what_workloads_cause_at_will(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents, "MOST_CANDIDATES", 2)
    few, some, many = [incident("few")] * 20, [incident("some")] * 21, [incident("many", kind=RECONNECTS)] * 200
    crashes = [incident("crashes", kind=CRASHES)] * 100
    assert candidates(spark, *few, *some, *many, *crashes) == {"few", "some"}
    assert candidates(spark, *few, *many, *crashes) == {"few", "crashes"}


def test_a_storm_has_closes_within_a_tenth_of_its_idle_age_and_from_a_minute_before_it(spark: SparkSession) -> None:
    cases = [(1095, 0), (1096, 0), (905, 0), (904, 0), (1000, -60_000_000), (1000, -60_000_001), (1000, 3600 * 10**6)]
    of = [incident(f"{level} {later_us}", level=level, closed_us=NOON_US + later_us) for level, later_us in cases]
    storms = [storm(one["subject"]) for one in of] + [storm(None), storm("other")]
    found = incidents.members(rows(spark, *of, incident(None)), incidents.rows(spark, storms), CONFIG)
    assert {(row["id"], row["subject"]) for row in found.collect()} == {
        *((f"{level} {later_us}",) * 2 for level, later_us in [cases[0], cases[2], cases[4], cases[6]]), (None, None),
    }  # fmt: skip


def members(spark: SparkSession, *of: Event) -> DataFrame:
    """Return incidents as members of the storms of their subjects."""
    storms = [storm(subject) for subject in {one["subject"] for one in of}]
    return incidents.members(rows(spark, *of), incidents.rows(spark, storms), CONFIG)


def test_a_storm_has_in_common_what_most_have_the_median_and_evidence_of_both_ends(spark: SparkSession) -> None:
    of = [
        incident(idle_us=5, cause="z", evidence="b", given_in=0),
        incident(idle_us=1, cause="y", evidence="c", both=False),
        incident(idle_us=3, cause="y", evidence="a"),
        incident(idle_us=2, cause="z", evidence=""),
    ]
    odd = [incident("odd", idle_us=us, cause="z") for us in (5, 4, 1, 3, 2)]
    found = {row["id"]: row.asDict() for row in incidents.in_common(members(spark, *of, *odd), CLOCK).collect()}
    assert found["middlebox_reset"] == {
        "id": "middlebox_reset",
        "count": 4,
        "fresh": 3,
        "cause": "y",
        "idle_us": 2,
        "both_ends": 3,
        "evidence": "b",
    }
    assert found["odd"]["idle_us"] == 3


def test_only_what_a_micro_batch_changes_is_described(spark: SparkSession) -> None:
    of = [incident("grows"), incident("waits", given_in=0), incident("begins", given_in=0)]
    storms = incidents.rows(spark, (storm(one["subject"]) for one in of))
    none = spark_session.rows(spark, (), connections.SCHEMA)
    reports = spark_session.rows(spark, (), agents.SCHEMA)
    found = incidents.described(rows(spark, *of), storms, ["begins"], none, reports, none, CLOCK, CONFIG)
    assert {row["id"]: row["count"] for row in found} == {"grows": 1, "begins": 1}


def of_scopes(**names: str | None) -> Event:
    return incident(scopes=[{"scope": scope, "name": name, "counted": True} for scope, name in names.items()])


def test_the_five_that_were_hit_most_are_named(spark: SparkSession) -> None:
    of = [of_scopes(workload=name, broker=None, network=f"{name}/24") for name in "aabcdefffg"]
    (row,) = members(spark, *of).transform(incidents.hits).transform(incidents.hit_most).collect()
    most = [("f", 3), ("a", 2), ("g", 1), ("e", 1), ("d", 1)]
    assert [(hit["name"], hit["count"]) for hit in row["workloads"]] == most
    assert [(hit["name"], hit["count"]) for hit in row["networks"]] == [(f"{name}/24", count) for name, count in most]
    assert row["brokers"] == []


def test_a_storm_has_the_largest_share_of_its_scopes(spark: SparkSession) -> None:
    """A scope's population is at least its closed connections, and may be all that agents sum up."""
    closed = [
        *(("a", "workload", "w", 20, 19, True), ("a", "broker", "b", 30, 30, True)),
        *(("b", "broker", "b", 30, 30, True), ("b", "broker", "c", 40, 40, True), ("b", "network", "n", 20, 20, True)),
        ("c", "broker", "d", 20, 19, False),
    ]
    scopes = spark_session.rows(spark, (dict(zip(_CLOSED.names, row, strict=True)) for row in closed), _CLOSED)
    open_ends = [
        {"side": "server", "local": "b", "peer_network": "n", "count": 30},
        {"side": "server", "local": "c", "count": 40},
        {"side": "client", "local": "10.0.1.1", "count": 7},
    ]
    reported = spark_session.rows(spark, [{"agent_id": "a", "open": open_ends}], agents.SCHEMA)
    found = incidents.share_of(scopes, reported, None).collect()
    assert {row["id"]: (row["scope"], row["share"], row["population"]) for row in found} == {
        "a": ("workload w", 20 / 26, 26), "b": ("broker c", 0.5, 80), "c": ("broker d", 1, 20),
    }  # fmt: skip


def test_in_a_scope_that_no_agent_counts_what_is_open_is_found_or_else_reported(spark: SparkSession) -> None:
    scope = {"id": "a", "scope": "broker", "name": "b", "hits": 20, "closed": 20, "counted": False}
    open_ends = [{"side": "server", "local": "b", "count": 30}]
    reported = spark_session.rows(spark, [{"agent_id": "a", "open": open_ends}], agents.SCHEMA)
    for found, population in ((0, 50), (2, 22)):
        peers = [{"key": str(number), "client": {"peer": "b"}} for number in range(found)]
        open_connections = spark_session.rows(spark, peers, connections.SCHEMA)
        (row,) = incidents.share_of(spark_session.rows(spark, [scope], _CLOSED), reported, open_connections).collect()
        assert row["population"] == population
