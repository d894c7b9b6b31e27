"""Frames with any claims, cut anywhere: no exception, a part of the facts, and no more work than bytes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.facts import POSITIVE, Status, measure_values
from kafka_probe.protocol.schemas import Api, apis
from tests.builders.trees import Message, generated, uvarint
from tests.unit.protocol.cuts import WHOLE, assert_part_of, shape_of

APIS = list(apis().values())
MESSAGES = st.builds(
    lambda api, response, of_newest, seed: generated(
        api, response, api.versions[-1 - of_newest % len(api.versions)], seed
    ),
    st.sampled_from(APIS),
    st.booleans(),
    st.integers(0, 20),
    st.integers(0),
)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize("response", [False, True], ids=["request", "response"])
def test_every_version_cut_at_every_byte_gives_a_part_of_its_facts(api: Api, response: bool) -> None:
    for version in api.versions:
        assert_cuts_are_parts(generated(api, response, version, seed=1))


@given(MESSAGES)
def test_any_message_cut_at_every_byte_gives_a_part_of_its_facts(message: Message) -> None:
    assert_cuts_are_parts(message)


def assert_cuts_are_parts(message: Message) -> None:
    data = message.data
    whole = shape_of(message, data)
    assert whole.facts.status is Status.COMPLETE
    for end in range(len(data)):
        part = shape_of(message, data[:end], copied_all=False)
        if part.facts.status is Status.COMPLETE:  # what stands behind the last fact may be missing
            assert part.facts == whole.facts
        else:
            assert part.facts.status is Status.TRUNCATED
            assert part.facts.stopped_at
        assert part.used_bytes <= end
        assert part.measures == whole.measures[: len(part.measures)]
        assert len(part.mask) == end
        assert_part_of(part.facts, whole.facts)


@given(MESSAGES, st.data())
def test_damaged_messages_give_a_status(message: Message, draw: st.DataObject) -> None:
    data = bytearray(message.data)
    for _ in range(draw.draw(st.integers(1, 4)) * bool(data)):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    shape = shape_of(message, bytes(data), copied_all=draw.draw(st.booleans()))
    assert shape.used_bytes <= len(data)
    assert all(measure.offset + measure.width <= len(data) for measure in shape.measures)
    assert (
        min(
            (
                value
                for m, value in zip(shape.measures, measure_values(shape, bytes(data)), strict=True)
                if m.kind in POSITIVE
            ),
            default=1,
        )
        > 0
    )


@given(st.sampled_from(APIS), st.booleans(), st.integers(0, 20), st.binary(max_size=400))
def test_a_walk_does_no_more_than_some_lines_per_byte(api: Api, response: bool, nth: int, data: bytes) -> None:
    version = api.versions[nth % len(api.versions)]
    assert lines_of_reader(response, api.key, version, data) <= LINES_PER_FRAME + LINES_PER_BYTE * len(data)


LINES_PER_FRAME, LINES_PER_BYTE = 700, 40
TWO_BILLION = (2**31 - 1).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("api_key", "version", "head"),
    [
        (3, 1, b"\xff\xff" + TWO_BILLION),
        (3, 9, b"\xff\xff\0" + uvarint(2**31)),
        (0, 3, b"\xff\xff" + b"\xff\xff" + bytes(6) + TWO_BILLION + b"\0\1t" + TWO_BILLION),
        (9, 8, b"\xff\xff\0" + uvarint(2**35 - 1) + b"\1\1" + uvarint(2**35 - 1)),
        (12, 4, b"\xff\xff" + uvarint(2**35 - 1) + uvarint(2**35 - 1) * 2),
    ],
)
@pytest.mark.parametrize("filling", [b"\0", b"\1", b"\x7f", b"\xff"])
def test_counts_far_beyond_the_data_cost_no_more_than_the_data(
    api_key: int, version: int, head: bytes, filling: bytes
) -> None:
    for size in (0, 100, 10_000):
        data = head + filling * size
        assert lines_of_reader(False, api_key, version, data) <= LINES_PER_FRAME + LINES_PER_BYTE * len(data)


def lines_of_reader(response: bool, api_key: int, version: int, data: bytes) -> int:
    """Return the number of lines of Python that a reader executes."""
    reader, _ = WHOLE[response, api_key, version]
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        reader(data, len(data))
    finally:
        sys.settrace(before)
    return lines


@given(st.booleans(), st.integers(-1, 100), st.integers(-1, 20), st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_give_a_status(response: bool, key: int, version: int, data: bytes, copied_all: bool) -> None:
    shape = decode(response, key, version, data, copied_all=copied_all).shape()
    assert len(shape.mask) == len(data)
    assert (shape.facts.stopped_at is None) == (shape.facts.status not in (Status.TRUNCATED, Status.MALFORMED))
    measure_values(shape, data)
