"""Truth and verdicts: what counts as right, as wrong, and as unknown."""

from __future__ import annotations

import pytest

from tests.lab.network import Connection
from tests.programs.verdicts.answers import Answer
from tests.programs.verdicts.causes import CAUSES, Cell, Ended
from tests.programs.verdicts.matrix import MISSING, flows, judged, matrix, table

CELLS = {cell.cause.name: cell for cause in CAUSES for cell in cause.cells()}
KILLED: Cell = CELLS["client killed"]
IDLE: Cell = CELLS["client idle limit"]
ENDS = [Connection(f"10.0.0.1:{port}", "10.0.0.2:9092") for port in range(5)]
TRUTH = {KILLED: Ended(frozenset(ENDS[1:3]), 100, 200), IDLE: Ended(frozenset(ENDS[3:5]), 100, 200)}
ANSWERS = [
    Answer("process_exit", "why", "a", ENDS[1], 150),
    Answer("normal", "why", "b", ENDS[2], 150),
    Answer("unknown", "why", "c", ENDS[3], 150),
]


def test_every_injected_connection_has_a_verdict_or_is_missing() -> None:
    of = judged(TRUTH, flows(TRUTH, ANSWERS), ANSWERS)
    assert [(one.given, one.right, one.wrong) for one in of] == [
        ("process_exit", True, False),
        ("normal", False, True),
        ("unknown", False, False),
        (MISSING, False, False),
    ]
    assert matrix(of) == {
        "client_idle_limit": {"unknown": 1, MISSING: 1},
        "process_exit": {"process_exit": 1, "normal": 1},
    }


@pytest.mark.parametrize("closed_us", [50, 180, 250])
def test_of_the_connections_of_an_address_the_one_that_was_open_when_the_cell_began_counts(closed_us: int) -> None:
    answers = [*ANSWERS, Answer("normal", "why", "d", ENDS[1], closed_us)]
    assert judged(TRUTH, flows(TRUTH, answers), answers) == judged(TRUTH, flows(TRUTH, ANSWERS), ANSWERS)


def test_what_one_end_alone_saw_is_joined_by_the_id_that_both_have() -> None:
    broker_only = [Answer("process_exit", "why", "b", None, 150)]
    given = [one.given for one in judged(TRUTH, flows(TRUTH, ANSWERS), broker_only)]
    assert given == [MISSING, "process_exit", MISSING, MISSING]


def test_the_table_has_a_column_for_every_verdict_that_was_expected_or_given() -> None:
    header, first, second = table(matrix(judged(TRUTH, flows(TRUTH, ANSWERS), ANSWERS))).splitlines()
    assert header.split() == ["expected", MISSING, "client_idle_limit", "normal", "process_exit", "unknown"]
    assert first.split() == ["client_idle_limit", "1", ".", ".", ".", "1"]
    assert second.split() == ["process_exit", ".", ".", "1", "1", "."]
