"""The bounds of storms, of incidents and storms as values: without Spark."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import Row

from kafka_probe_pipeline import session, storms
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.source import Clock
from kafka_probe_pipeline.storms import (
    CRASHES,
    IDLE,
    RECONNECTS,
    RESTART,
    Incident,
    Storm,
    begun,
    densest,
    due,
    without_new,
)
from tests.builders.spark_events import NOON_US, SECOND_US, Event

CONFIG = load({})
INCIDENT = Incident(
    kind=IDLE,
    subject="middlebox_reset",
    level=1000,
    given_in=1,
    judged_us=NOON_US,
    closed_us=NOON_US,
    cause="middlebox_reset",
    idle_us=30 * SECOND_US,
    evidence="",
    both=True,
    scopes=[Row(scope="all", name="connections")],
)


def clock(later_s: float = 0) -> Clock:
    """Return the clock of batch 1, so long after noon."""
    return Clock(1, NOON_US + round(later_s * SECOND_US))


def test_where_nothing_can_have_come_of_it_nobody_looks_for_a_storm() -> None:
    def looks(*known: Row, later_s: float = 0, **new: int) -> bool:
        return due(known, new, new, clock(later_s), CONFIG)

    assert not looks(normal=50, middlebox_reset=19)
    assert not looks(normal=40, unknown=40, middlebox_reset=19)
    assert looks(middlebox_reset=19, process_exit=1)
    assert not looks(normal=99)
    assert looks(normal=100)
    storm = Row(state="active", updated_us=NOON_US)
    assert looks(storm, normal=1)
    assert not looks(storm, later_s=59.999_999)
    assert looks(storm, later_s=60)
    assert not looks(Row(state="resolved", updated_us=NOON_US), later_s=60)
    assert not looks(Row(state="resolved", updated_us=NOON_US), normal=1)


@pytest.mark.parametrize(("kind", "minimum"), [(IDLE, 20), (RESTART, 20), (CRASHES, 20), (RECONNECTS, 100)])
def test_a_storm_begins_with_the_least_number_of_its_kind(kind: str, minimum: int) -> None:
    many = [INCIDENT._replace(kind=kind)] * minimum
    (storm,) = begun(many, clock(), CONFIG)
    assert storm.subject == (kind, "middlebox_reset")
    assert len(storm.now["id"]) == 16
    assert begun(many[1:], clock(), CONFIG) == []
    assert begun([*many[1:], INCIDENT._replace(kind=kind, subject="other")], clock(), CONFIG) == []


def test_a_storm_begins_with_its_first_close_at_the_middle_of_its_levels() -> None:
    many = [INCIDENT._replace(level=1000 + 3 * n, closed_us=NOON_US - n % 7) for n in range(20)]
    (storm,) = begun(many, clock(), CONFIG)
    assert (storm.now["level"], storm.now["since_us"]) == (1028, NOON_US - 6)


@pytest.mark.parametrize(("storm_window", "storm_quiet"), [(40, 60), (60, 40)])
def test_a_storm_begins_with_verdicts_of_the_window_as_long_as_it_would_not_be_over(
    storm_window: float, storm_quiet: float
) -> None:
    config = load({"storm_window": storm_window, "storm_quiet": storm_quiet})
    assert begun([INCIDENT] * 20, clock(39.999_999), config)
    assert not begun([INCIDENT] * 20, clock(40), config)


@pytest.mark.parametrize(
    ("level", "later_us", "together"),
    [
        (1095, 0, True),
        (1096, 0, False),
        (905, 0, True),
        (904, 0, False),
        (1000, 59_999_999, True),
        (1000, 60_000_000, False),
    ],
)
def test_the_densest_group_is_within_a_tenth_of_the_idle_age_and_a_minute(
    level: int, later_us: int, together: bool
) -> None:
    other = INCIDENT._replace(level=level, closed_us=NOON_US + later_us)
    group = densest([INCIDENT, other], CONFIG)
    assert len(group) == 1 + together
    assert other in group or level < INCIDENT.level
    assert len(densest([INCIDENT, other, INCIDENT], CONFIG)) == 2 + together


@pytest.mark.parametrize(("first_us", "last_us", "together"), [(10_000_000, 69_999_999, 2), (9_999_999, 60_000_000, 1)])
def test_windows_begin_every_ten_seconds(first_us: int, last_us: int, together: int) -> None:
    closes = [INCIDENT._replace(closed_us=NOON_US + us) for us in (first_us, last_us)]
    assert len(densest(closes, CONFIG)) == together


def test_of_groups_that_are_as_dense_the_latest_counts() -> None:
    early, late = INCIDENT, INCIDENT._replace(closed_us=NOON_US + 3600 * SECOND_US)
    assert densest([late, early], CONFIG) == [late]
    assert densest([early, late, early], CONFIG) == [early, early]


def storm_of(*members: Incident, **facts: object) -> Storm:
    """Return a storm that is active since noon."""
    row = dict.fromkeys(storms.SCHEMA.names) | {"id": "a", "kind": IDLE, "level": 1000, "state": "active"}
    times = {"since_us": NOON_US, "opened_us": NOON_US, "updated_us": NOON_US}
    return Storm(row | {"subject": "middlebox_reset", "count": 20} | times | facts, list(members))


@pytest.mark.parametrize(
    ("level", "later_us", "part"),
    [
        (1095, 0, True),
        (1096, 0, False),
        (905, 0, True),
        (904, 0, False),
        (1000, -60_000_000, True),
        (1000, -60_000_001, False),
    ],
)
def test_a_storm_grows_by_closes_within_a_tenth_of_its_idle_age_and_from_a_minute_before_it(
    level: int, later_us: int, part: bool
) -> None:
    one = INCIDENT._replace(level=level, closed_us=NOON_US + later_us)
    assert storm_of().has(one, storms._span(CONFIG), CONFIG) == part


def of_scopes(workload: str | None, broker: str | None = None) -> Incident:
    return INCIDENT._replace(scopes=[Row(scope="workload", name=workload), Row(scope="broker", name=broker)])


@pytest.mark.parametrize(
    ("hits", "scope", "share", "population"), [(19, "broker b", 0.5, 80), (20, "workload a", 1, 20)]
)
def test_a_storm_has_the_largest_share_of_a_scope_in_which_it_hit_enough(
    hits: int, scope: str, share: float, population: int
) -> None:
    storm = storm_of(*[of_scopes("a", "b")] * hits, *[of_scopes(None, "b")] * (40 - hits))
    counted = {("a", ("workload", "a")): hits - 1, ("a", ("broker", "b")): 80, ("other", ("broker", "b")): 40}
    storm.describe(counted, CONFIG)
    assert (storm.now["scope"], storm.now["share"], storm.now["population"]) == (scope, share, population)
    assert storm.now["workloads"] == [{"count": hits, "name": "a"}]


@pytest.mark.parametrize(
    ("cause", "share", "large"),
    [
        ("client_idle_limit", 0.1, True),
        ("broker_idle_limit", 0.0999, False),
        ("process_exit", None, False),
        ("middlebox_reset", 0.001, True),
        ("middlebox_silent_drop", None, True),
    ],
)
def test_all_but_middleboxes_have_to_hit_a_tenth(cause: str, share: float | None, large: bool) -> None:
    assert storm_of(cause=cause, share=share).is_large(CONFIG) == large


def test_a_storm_is_described_by_what_most_of_it_have_in_common_and_by_evidence_of_both_ends() -> None:
    members = [
        INCIDENT._replace(idle_us=5, cause="z", evidence="b"),
        INCIDENT._replace(idle_us=1, cause="y", evidence="c", both=False),
        INCIDENT._replace(idle_us=3, cause="y", evidence="a"),
        INCIDENT._replace(idle_us=2, cause="z", evidence=""),
    ]
    storm = storm_of(*members)
    storm.describe({}, CONFIG)
    assert {name: storm.now[name] for name in ("cause", "idle_us", "both_ends", "evidence")} == {
        "cause": "y", "idle_us": 2, "both_ends": 3, "evidence": "b",
    }  # fmt: skip
    other = storm_of(*members, kind=CRASHES)
    other.describe({}, CONFIG)
    assert other.now["idle_us"] is None
    other.members.clear()
    other.describe({}, CONFIG)
    assert other.now["both_ends"] == 3


def test_the_five_that_were_hit_most_are_named() -> None:
    storm = storm_of(*(of_scopes(name) for name in "aabcdefffg"))
    storm.describe({}, CONFIG)
    assert [(hit["name"], hit["count"]) for hit in storm.now["workloads"]] == [
        ("f", 3), ("a", 2), ("g", 1), ("e", 1), ("d", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "members", "later_s", "expected"),
    [
        (
            {"opened_us": None},
            [INCIDENT] * 2,
            5,
            {"change": "opened", "count": 2, "updated_us": NOON_US + 5 * SECOND_US},
        ),
        ({}, [INCIDENT, INCIDENT._replace(given_in=0)], 70, {"change": "updated", "count": 21, "state": "active"}),
        ({}, [INCIDENT._replace(given_in=0)], 59.999_999, {"change": None, "count": 20, "state": "active"}),
        ({}, [], 60, {"change": "resolved", "count": 20, "state": "resolved", "updated_us": NOON_US}),
        ({"state": "resolved"}, [INCIDENT], 70, {"change": None, "count": 20, "state": "resolved"}),
    ],
    ids=["begins", "grows", "waits", "ends", "is over"],
)
def test_a_storm_opens_grows_and_is_resolved(
    facts: Event, members: list[Incident], later_s: float, expected: Event
) -> None:
    row = storm_of(*members, **facts).brought_up_to_date(clock(later_s), CONFIG)
    assert {name: row[name] for name in expected} == expected
    if expected["change"]:
        assert row["batch_id"] == 1


@pytest.mark.parametrize(("resolved_s", "kept"), [(None, 1), (-299.999_999, 1), (-300, 0)])
def test_a_storm_is_kept_as_long_as_closed_connections(
    monkeypatch: pytest.MonkeyPatch, resolved_s: float | None, kept: int
) -> None:
    monkeypatch.setattr(session, "rows", lambda _spark, rows, _schema: rows)
    resolved_us = None if resolved_s is None else NOON_US + round(resolved_s * SECOND_US)
    storm = storm_of(state="resolved", resolved_us=resolved_us)
    rows: Any = without_new(Mock(), [Row(**storm.now)], clock(), CONFIG)
    assert len(rows) == kept


@pytest.mark.parametrize(("values", "middle"), [([4, 1, 3, 2], 2), ([5, 4, 1, 3, 2], 3)])
def test_the_middle_is_the_lower_median(values: list[int], middle: int) -> None:
    assert storms._middle(values) == middle
