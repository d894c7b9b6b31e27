"""Text from outside becomes one visible line of bounded length."""

from __future__ import annotations

import logging
import sys
import tracemalloc

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.text import NAME_LIMIT, LineFormatter, as_json, printable, printable_json, printable_lines
from tests.builders.hostile import LONE_SURROGATE, NAMES, unsafe


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("[/x]", "[/x]"),
        ("Grüße 日本 😀", "Grüße 日本 😀"),
        ("a\x1b[2J\n", r"a\x1b[2J\n"),
        ("\x7f\x9b", r"\x7f\x9b"),
        ("\u202eb\u2028", r"\u202eb\u2028"),
        ("a\u200bb", r"a\u200bb"),
        (LONE_SURROGATE, r"a\ud800\udfff"),
        ("a\u115f\u1160\u3164\uffa0\u2800", r"a\u115f\u1160\u3164\uffa0\u2800"),
        ("a\u034f\ufe0f\U000e0100", r"a\u034f\ufe0f\U000e0100"),
        ("Việt שָּׁ", "Việt שָּׁ"),
        ("a" + "\u0336" * 6, "a" + "\u0336" * 4 + r"\u0336\u0336"),
        (None, "None"),
        (7, "7"),
    ],
)
def test_what_is_not_visible_is_escaped_and_all_else_stays(text: object, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["x" * 32_767, "\x1b" * 32_767, "\x1b" * 100])
def test_a_long_text_is_cut_and_ends_with_a_sign(text: str) -> None:
    assert len(printable(text)) == NAME_LIMIT
    assert printable(text).endswith("…")
    assert printable("x" * NAME_LIMIT) == "x" * NAME_LIMIT


@given(st.text(st.characters(codec=None), max_size=600))
def test_any_text_becomes_one_bounded_visible_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= NAME_LIMIT
    assert not unsafe(printable_lines(text))


@given(st.dictionaries(st.text(), st.text() | st.integers(0, 9)))
def test_json_stays_the_same_json_without_anything_invisible(value: dict[str, object]) -> None:
    line = printable_json(orjson.dumps(value))
    assert orjson.loads(line) == value
    assert line.decode().isprintable()
    assert not unsafe(line)


def test_one_wide_character_does_not_make_a_long_line_many_times_as_long() -> None:
    line = orjson.dumps("\x01" * 200_000 + "\N{PILE OF POO}")
    tracemalloc.start()
    try:
        printable_json(line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * len(line)


@pytest.mark.parametrize("name", [*NAMES, LONE_SURROGATE])
def test_a_log_record_is_one_line_and_its_exception_is_indented(name: str) -> None:
    try:
        raise ValueError(name)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "refused: %s", (name,), sys.exc_info())
    first, *rest = LineFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert first.startswith("ERROR refused: ")
    assert rest
    assert all(line.startswith("  ") for line in rest)
    assert not unsafe("".join([first, *rest]))


def test_json_takes_no_more_memory_than_it_has_bytes() -> None:
    tracemalloc.start()
    try:
        kept = [as_json({"id": "x" * 1000}) for _ in range(100)]
        assert tracemalloc.get_traced_memory()[0] < 100 * 1200
    finally:
        tracemalloc.stop()
    assert orjson.loads(kept[0]) == {"id": "x" * 1000}
