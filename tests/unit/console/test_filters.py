"""The language of --filter: what it selects, and that a text is never SQL."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.errors import UsageError
from kafka_probe_console.columns import AnswerColumn, Kind
from kafka_probe_console.filters import MOST_CHARACTERS, MOST_COMPARISONS, MOST_DEPTH, condition

COLUMNS = (AnswerColumn("client"), AnswerColumn("count", Kind.NUMBER), AnswerColumn("last", Kind.TIME))
ROWS = """
    (VALUES ('billing-1', 30, TIMESTAMPTZ '2026-11-01 10:00:00Z'), ('billing-2', 5, TIMESTAMPTZ '2026-11-02 10:00:00Z'),
    ('or', 7, NULL), (NULL, NULL, NULL)) AS given(client, count, last)
"""


def selected(text: str) -> list[str | None]:
    where, values = condition(text, COLUMNS)
    return [row[0] for row in duckdb.execute(f"SELECT client FROM {ROWS} WHERE {where}", values).fetchall()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("client = billing-1", ["billing-1"]),
        ("client != billing-1", ["billing-2", "or", None]),
        ("client ~ 'billing-*'", ["billing-1", "billing-2"]),
        ("client !~ billing-?", ["or", None]),
        ("not client ~ billing-?", ["or", None]),
        ("count >= 7", ["billing-1", "or"]),
        ("count<7", ["billing-2"]),
        ("count > 6.5 and count <= 7", ["or"]),
        ("count = 30 or count = 5", ["billing-1", "billing-2"]),
        ("count = 30 or count = 5 and client = or", ["billing-1"]),
        ("(count = 30 or count = 7) and not client = billing-1", ["or"]),
        ("last > 2026-11-01T12:00Z", ["billing-2"]),
        ('client = "or" AND count = 7', ["or"]),
        ("client = 'or'", ["or"]),
    ],
)
def test_a_filter_selects(text: str, expected: list[str | None]) -> None:
    assert selected(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "client = ''; DROP TABLE given",
        "client = 'x' or 1 = 1",
        "read_text('/etc/passwd') = x",
        "client = 'x' UNION SELECT 1",
        "COPY given TO '/tmp/given'",
        "ATTACH 'x'",
        "count = 'five'",
        "count ~ 5",
        "count = nan",
        "count = 1e400",
        "last > yesterday",
        "owner = x",
        "client",
        "client =",
        "client = x y",
        "(client = x",
        "client = x)",
        "and client = x",
        "not",
        "client = 'x",
        "client = x and",
        "client == x",
        "client = (x)",
        "",
        " ",
    ],
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        condition(text, COLUMNS)


def test_a_filter_is_bounded() -> None:
    comparison = "count = 1"
    assert condition(" or ".join([comparison] * MOST_COMPARISONS), COLUMNS)
    for text in (
        " or ".join([comparison] * (MOST_COMPARISONS + 1)),
        "not " * MOST_DEPTH + comparison,
        "(" * 10_000 + comparison,
        "(" * 1000 + comparison + ")" * 1000,
        comparison + " " * MOST_CHARACTERS,
    ):
        with pytest.raises(UsageError):
            condition(text, COLUMNS)


@given(st.text(st.sampled_from("client count=<>!~()'\"; -/*x1%_\n\x00and or not")))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        where, values = condition(text, COLUMNS)
    except UsageError:
        return
    duckdb.execute(f"SELECT client FROM {ROWS} WHERE {where}", values).fetchall()


@given(st.text())
def test_a_value_in_quotes_is_compared_as_it_is(text: str) -> None:
    quoted = f'"{text.replace(chr(34), "")}"'
    _, values = condition(f"client = {quoted}", COLUMNS)
    assert values == [quoted[1:-1]]
