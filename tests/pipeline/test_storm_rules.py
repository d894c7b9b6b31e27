"""The bounds of storms, of incidents and storms as values: without Spark."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import Row

from kafka_probe_pipeline import spark_session, storms
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.incidents import CRASHES, HIT_MOST, IDLE, RECONNECTS, RESTART
from kafka_probe_pipeline.source import Clock
from kafka_probe_pipeline.storms import Cell, Storm, begun, densest, due, within_limit, without_new
from tests.builders.spark_events import NOON_US, SECOND_US, Event

CONFIG = load({})
CELL = Cell(hop=600, level=1000, closes=1, since_us=NOON_US)
FOUND: Event = {
    "count": 21,
    "fresh": 20,
    "both_ends": 19,
    "cause": "middlebox_reset",
    "idle_us": 30 * SECOND_US,
    "evidence": "the client received an RST",
    "share": 0.5,
    "population": 40,
    "scope": "all connections",
    **{column: [{"count": 20, "name": "a"}] for column in HIT_MOST},
}


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


def candidate(*cells: Cell, kind: str = IDLE) -> Row:
    """Return a candidate as `incidents.candidates` does."""
    return Row(kind=kind, subject="middlebox_reset", count=sum(cell.closes for cell in cells), cells=[*cells])


@pytest.mark.parametrize(("kind", "minimum"), [(IDLE, 20), (RESTART, 20), (CRASHES, 20), (RECONNECTS, 100)])
def test_a_storm_begins_with_the_least_number_of_its_kind(kind: str, minimum: int) -> None:
    some = CELL._replace(closes=minimum - 1)
    storm = begun(candidate(some, CELL, kind=kind), clock(), CONFIG)
    assert storm
    assert (storm.now["kind"], storm.now["subject"]) == (kind, "middlebox_reset")
    assert len(storm.now["id"]) == 16
    assert (storm.fresh, storm.members) == (0, 0)
    assert begun(candidate(some, kind=kind), clock(), CONFIG) is None
    assert begun(candidate(some, CELL._replace(hop=1), kind=kind), clock(), CONFIG) is None


def test_a_storm_begins_with_its_first_close_at_the_middle_of_its_levels() -> None:
    cells = [CELL._replace(level=1000 + 3 * n, since_us=NOON_US - n % 7) for n in range(20)]
    storm = begun(candidate(*cells), clock(), CONFIG)
    assert storm
    assert (storm.now["level"], storm.now["since_us"]) == (1028, NOON_US - 6)


@pytest.mark.parametrize(
    ("level", "hop", "together"),
    [(1095, 600, True), (1096, 600, False), (905, 600, True), (904, 600, False), (1000, 605, True), (1000, 606, False)],
)
def test_the_densest_group_is_within_a_tenth_of_the_idle_age_and_six_sixths_of_a_window(
    level: int, hop: int, together: bool
) -> None:
    other = CELL._replace(level=level, hop=hop)
    group = densest([CELL, other], CONFIG)
    assert len(group) == 1 + together
    assert other in group or level < CELL.level
    assert len(densest([CELL, other, CELL], CONFIG)) == 2 + together
    assert densest([CELL, other._replace(closes=5)], CONFIG)[-1].closes == (1 if level == 905 else 5)


def test_the_number_of_closes_decides_and_not_that_of_cells() -> None:
    many = CELL._replace(closes=5)
    few = [CELL._replace(level=level) for level in (2000, 2001, 2002, 2003)]
    assert densest([*few, many], CONFIG) == [many]
    assert densest([many, *(cell._replace(hop=960) for cell in few)], CONFIG) == [many]
    assert densest([*few, many, CELL._replace(level=2004), CELL._replace(level=2005)], CONFIG)[0] == few[0]


def test_of_groups_that_are_as_dense_the_latest_counts() -> None:
    early, late = CELL, CELL._replace(hop=960)
    assert densest([late, early], CONFIG) == [late]
    assert densest([early, late, early], CONFIG) == [early, early]
    assert densest([], CONFIG) == []


def storm_of(fresh: int = 0, members: int = 0, **facts: object) -> Storm:
    """Return a storm that is active since noon."""
    row = dict.fromkeys(storms.SCHEMA.names) | {"id": "a", "kind": IDLE, "level": 1000, "state": "active"}
    times = {"since_us": NOON_US, "opened_us": NOON_US, "updated_us": NOON_US}
    return Storm(row | {"subject": "middlebox_reset", "count": 20} | times | facts, fresh, members)


@pytest.mark.parametrize("known", [{}, {"opened_us": None, "state": None}], ids=["active", "new"])
def test_a_storm_is_described_by_what_its_members_have_in_common(known: Event) -> None:
    storm = storm_of(**known)
    storm.describe(FOUND)
    assert (storm.fresh, storm.members) == (20, 21)
    names = FOUND.keys() - {"fresh", "count"}
    assert {name: storm.now[name] for name in names} == {name: FOUND[name] for name in names}


def test_only_an_idle_storm_has_an_idle_age() -> None:
    storm = storm_of(kind=CRASHES)
    storm.describe(FOUND)
    assert storm.now["idle_us"] is None


def test_a_storm_of_which_most_members_are_forgotten_keeps_its_share() -> None:
    storm = storm_of(share=0.4, population=50, scope="broker b")
    storm.describe(FOUND | dict.fromkeys(("share", "population", "scope")))
    assert (storm.now["share"], storm.now["population"], storm.now["scope"]) == (0.4, 50, "broker b")
    assert storm.now["both_ends"] == 19


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


@pytest.mark.parametrize(
    ("facts", "fresh", "later_s", "expected"),
    [
        ({"opened_us": None}, 2, 5, {"change": "opened", "count": 3, "updated_us": NOON_US + 5 * SECOND_US}),
        ({}, 1, 70, {"change": "updated", "count": 21, "state": "active"}),
        ({}, 0, 59.999_999, {"change": None, "count": 20, "state": "active"}),
        ({}, 0, 60, {"change": "resolved", "count": 20, "state": "resolved", "updated_us": NOON_US}),
        ({"state": "resolved"}, 1, 70, {"change": None, "count": 20, "state": "resolved"}),
    ],
    ids=["begins", "grows", "waits", "ends", "is over"],
)
def test_a_storm_opens_grows_and_is_resolved(facts: Event, fresh: int, later_s: float, expected: Event) -> None:
    row = storm_of(fresh, 3, **facts).brought_up_to_date(clock(later_s), CONFIG)
    assert {name: row[name] for name in expected} == expected
    if expected["change"]:
        assert row["batch_id"] == 1


@pytest.mark.parametrize(("resolved_s", "kept"), [(None, 1), (-299.999_999, 1), (-300, 0)])
def test_a_storm_is_kept_as_long_as_closed_connections(
    monkeypatch: pytest.MonkeyPatch, resolved_s: float | None, kept: int
) -> None:
    monkeypatch.setattr(spark_session, "rows", lambda _spark, rows, _schema: rows)
    resolved_us = None if resolved_s is None else NOON_US + round(resolved_s * SECOND_US)
    storm = storm_of(state="resolved", resolved_us=resolved_us)
    rows: Any = without_new(Mock(), [Row(**storm.now)], clock(), CONFIG)
    assert len(rows) == kept


def test_storms_of_one_kind_take_no_places_of_another() -> None:
    active = [Storm({"kind": CRASHES})] * 49
    new = [Storm({"kind": kind}) for kind in (IDLE, CRASHES, CRASHES, IDLE)]
    assert [storm.now["kind"] for storm in within_limit(new, active)] == [IDLE, CRASHES, IDLE]


def test_a_new_storm_takes_one_place() -> None:
    new = [Storm({"kind": IDLE})] * (storms.MOST_OF_KIND + 1)
    assert len(within_limit(new, [])) == storms.MOST_OF_KIND


def test_the_table_has_what_people_read_of_a_storm() -> None:
    assert storms.CHANGES.names == [
        *("ts", "since_ts", "opened_ts", "resolved_ts", "id", "kind", "subject", "state", "change", "count"),
        *("population", "share", "scope", "cause", "both_ends", "evidence"),
        *("workloads", "brokers", "networks", "idle_us"),
    ]
