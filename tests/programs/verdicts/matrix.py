"""Compares truth and verdicts: which causes were taken for which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.lab.network import Connection
from tests.programs.verdicts.answers import Answer
from tests.programs.verdicts.causes import Cell, Ended

UNKNOWN = "unknown"
MISSING = "(none)"  # no verdict at all
Matrix = dict[str, dict[str, int]]
Truth = Mapping[Cell, Ended]
Flows = Mapping[tuple[Cell, Connection], str]


@dataclass(frozen=True, slots=True)
class Judged:
    """A connection that a cell ended, and the verdict on it with its evidence."""

    cell: Cell
    connection: Connection
    given: str
    evidence: str

    @property
    def right(self) -> bool:
        """Return True if the verdict is the cause."""
        return self.given == self.cell.cause.verdict

    @property
    def wrong(self) -> bool:
        """Return True if the verdict is another cause; unknown is not wrong."""
        return self.given not in (self.cell.cause.verdict, UNKNOWN, MISSING)


def flows(truth: Truth, answers: Iterable[Answer]) -> Flows:
    """Return the flow ids of the connections that the cells ended, from the verdicts with the clients watched."""
    by_connection: dict[Connection | None, list[Answer]] = {}
    # Of several in the time of a cell it is the first: it was open when that began.
    for one in sorted(answers, key=lambda one: one.closed_us, reverse=True):
        by_connection.setdefault(one.connection, []).append(one)
    return {
        (cell, connection): one.flow_id
        for cell, ended in truth.items()
        for connection in ended.connections
        for one in by_connection.get(connection, ())
        if one.flow_id and ended.since_us <= one.closed_us <= ended.until_us
    }


def judged(truth: Truth, flow_ids: Flows, answers: Iterable[Answer]) -> list[Judged]:
    """Return every connection that a cell ended, with the verdict on it, joined by flow id."""
    given = {one.flow_id: (one.verdict, one.evidence) for one in answers if one.flow_id}
    return [
        Judged(cell, connection, *given.get(flow_ids.get((cell, connection), ""), (MISSING, "")))
        for cell, ended in truth.items()
        for connection in sorted(ended.connections)
    ]


def matrix(of: Sequence[Judged]) -> Matrix:
    """Return the counts by expected and given verdict."""
    counts: dict[str, Counter[str]] = {}
    for one in of:
        counts.setdefault(one.cell.cause.verdict, Counter())[one.given] += 1
    return {expected: dict(given) for expected, given in sorted(counts.items())}


def table(of: Matrix) -> str:
    """Return the matrix as text: expected verdicts down, given ones across."""
    given = sorted({one for counts in of.values() for one in counts} | of.keys())
    wide = max(map(len, (*of, "expected")))
    lines = ["  ".join(("expected".ljust(wide), *given))]
    for expected, counts in of.items():
        cells = (str(counts.get(one, "") or ".").rjust(len(one)) for one in given)
        lines.append("  ".join((expected.ljust(wide), *cells)))
    return "\n".join(lines)
