"""Which label sets have rows: those with most requests lately, without coming and going."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.server.label_tables import LABEL_BYTES, OTHER, UNUSED_US, Labels, LabelTable

MINUTE_US = 60_000_000
OTHERS = (OTHER,)


class Sum:
    """A row that counts requests."""

    def __init__(self) -> None:
        self.requests = 0


class Table:
    """A table of sums by one label."""

    def __init__(self, limit: int) -> None:
        self.rows = LabelTable(Sum, lambda _: OTHERS, limit)

    def add(self, **requests: int) -> None:
        for label, count in requests.items():
            self.rows.row((label,), count).requests += count

    def after_a_minute(self) -> set[str]:
        """Return the labels with rows after a minute."""
        self.rows.end_interval(MINUTE_US)
        return {label for (label,), _ in self.rows if label != OTHER}


def long(name: str, times: float = 5) -> str:
    return name.ljust(round(times * LABEL_BYTES), "-")


def test_a_label_set_with_more_than_twice_as_many_requests_gets_the_row_of_the_least() -> None:
    table = Table(2)
    table.add(a=10, b=100, c=20, d=21)
    assert table.after_a_minute() == {"b", "d"}
    assert {labels: row.requests for labels, row in table.rows} == {("b",): 100, ("d",): 0, OTHERS: 41}


def test_equal_traffic_does_not_make_series_come_and_go() -> None:
    table = Table(2)
    table.add(a=10, b=10, c=10)
    for minute in range(30):
        table.add(**dict.fromkeys(("c", "b", "a"), 10 + 5 * (minute % 2)))
        assert table.after_a_minute() == {"a", "b"}


def test_ten_minutes_of_traffic_count() -> None:
    table = Table(1)
    table.add(a=1000)
    found = []
    for _ in range(30):
        table.add(b=100)
        found.append(table.after_a_minute())
    assert found == [{"a"}] * 11 + [{"b"}] * 19


@pytest.mark.parametrize("size", [1, 20])
def test_a_flood_of_names_takes_no_row_of_a_busy_one_and_keeps_no_busy_one_out(size: int) -> None:
    table = Table(10)
    olds = {f"old{n}": 50 for n in range(10)}
    table.add(**olds)
    for interval in range(20):
        table.add(**olds, **{long(f"x{interval}-{n}", size): 1 for n in range(4)}, busy=5000)
        table.add(**{long(f"y{interval}-{n}", size): 1 for n in range(100)})
        found = table.after_a_minute()
    assert "busy" in found
    assert {name[:3] for name in found} == {"bus", "old"}


def test_a_long_label_takes_rows_only_if_it_fits_then() -> None:
    table = Table(20)
    table.add(**{long(f"old{n}", 1): 10 for n in range(18)}, **{long(f"busy{n}", 1): 1000 for n in range(2)})
    table.add(**{long("longer", 18.9): 200, long("fits", 1): 100})
    found = {name.rstrip("-") for name in table.after_a_minute()}
    assert found == {"busy0", "busy1", "fits", *(f"old{n}" for n in range(1, 18))}


def test_long_labels_leave_space_for_fewer_rows() -> None:
    table = Table(10)
    table.add(**{long(f"{number}"): 1 for number in range(40)})
    assert len(table.rows) == 2
    table.rows.end_interval(UNUSED_US)
    table.add(**{f"{number}": 1 for number in range(40)})
    assert len(table.rows) == 10


def test_a_table_is_full_after_an_interval_in_which_some_counted_under_other() -> None:
    table = Table(2)
    for requests, full in (({"a": 9, "b": 9}, False), ({"c": 1}, True), ({"a": 1}, False), ({OTHER: 1}, False)):
        table.add(**requests)
        table.rows.end_interval(1)
        assert table.rows.full is full


def test_a_label_set_named_other_counts_as_the_others() -> None:
    table = Table(2)
    table.add(other=5)
    table.add(a=1, b=1, c=3)
    assert {labels: row.requests for labels, row in table.rows} == {("a",): 1, ("b",): 1, OTHERS: 8}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1000), st.sampled_from((0, 0, MINUTE_US, UNUSED_US)))),
    st.integers(1, 8),
)
def test_every_request_counts_once_and_tables_are_bounded(steps: list[tuple[int, int, int]], limit: int) -> None:
    table = LabelTable(Sum, lambda _: OTHERS, limit)
    counted: Counter[Labels] = Counter()
    for label, count, length_us in steps:
        row = table.row((str(label),), count)
        row.requests += count
        (labels,) = [labels for labels, one in table if one is row]
        counted[labels] += count
        if length_us:
            table.end_interval(length_us)
            counted = Counter({labels: counted[labels] for labels, row in table if row.requests})
        assert {labels: row.requests for labels, row in table if row.requests} == +counted
        assert len(table) <= limit
        assert len(table._waiting) <= limit
