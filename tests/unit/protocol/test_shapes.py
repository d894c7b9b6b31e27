"""Bytes outside a mask do not matter, and matching many frames at once equals decoding each."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.flow_sums import SUMMED
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.decoder import Readers, decode
from kafka_probe.protocol.facts import POSITIVE, Encoding, Fact, Shape, Status, measure_values, shape_bytes
from kafka_probe.protocol.measures import Bytes, Integers
from kafka_probe.protocol.shapes import Codes, ShapeTable, code_of, decode_code
from tests.builders.bounded_tables import grown_by
from tests.builders.messages import CASES, SKIPPED, Case, case
from tests.builders.trees import Records

if TYPE_CHECKING:
    from collections.abc import Sequence

PRODUCE, FETCH, METADATA, HEARTBEAT = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.HEARTBEAT
Frame = tuple[int, bytes]  # code and data


EVERY_MEASURE, OF_THE_AGENT = Readers(), Readers(SUMMED)


def shape_of(found: Case, data: bytes | None = None, readers: Readers = EVERY_MEASURE) -> Shape:
    facts = found.facts
    data = found.data if data is None else data
    return decode(facts.response, facts.api_key, facts.api_version, data, copied_all=True, readers=readers).shape()


def fitting(shape: Shape, data: bytes, noise: bytes) -> bytes:
    """Return other data that fit the shape, with noise wherever the mask leaves bits free.

    Measures that must be positive are.
    """
    mixed = bytearray(kept & mask | other & ~mask for kept, mask, other in zip(data, shape.mask, noise, strict=True))
    for measure in shape.measures:
        if measure.kind in POSITIVE and measure.encoding is Encoding.SIGNED:
            mixed[measure.offset] &= 0x7F
            mixed[measure.offset + measure.width - 1] |= 1
        elif measure.kind in POSITIVE:
            mixed[measure.offset] |= 2
    return bytes(mixed)


@given(st.sampled_from(CASES), st.sampled_from((EVERY_MEASURE, OF_THE_AGENT)), st.data())
def test_frames_that_agree_under_the_mask_have_the_same_shape(
    whole: Case, readers: Readers, draw: st.DataObject
) -> None:
    data = whole.data[: draw.draw(st.integers(0, len(whole.data)))]
    shape = shape_of(whole, data, readers)
    noise = draw.draw(st.binary(min_size=len(data), max_size=len(data)))
    assert shape_of(whole, fitting(shape, data, noise), readers) == shape


@given(
    st.booleans(),
    st.integers(0, 93),
    st.integers(0, 19),
    st.booleans(),
    st.integers(0, 200).flatmap(lambda n: st.tuples(*[st.binary(min_size=n, max_size=n)] * 2)),
)
def test_arbitrary_bytes_that_agree_under_the_mask_have_the_same_shape(
    response: bool, key: int, version: int, copied_all: bool, both: tuple[bytes, bytes]
) -> None:
    data, noise = both
    code = code_of(response, key, version, copied_all)
    shape = decode_code(code, data)
    assert decode_code(code, fitting(shape, data, noise)) == shape


@pytest.mark.parametrize("whole", CASES, ids=lambda whole: whole.name)
def test_strings_that_are_no_facts_decide_nothing(whole: Case) -> None:
    mask, start = shape_of(whole).mask, -1
    while (start := whole.data.find(SKIPPED.encode(), start + 1)) >= 0:
        assert not any(mask[start : start + len(SKIPPED)])


def test_a_varint_that_the_data_cut_decides_by_being_unfinished() -> None:
    assert decode(False, METADATA, 9, b"\xff\xff\x80", copied_all=False).shape().mask == b"\xff" * 3


def test_a_code_tells_a_cut_frame_from_a_broken_one() -> None:
    cut, broken = (
        decode_code(code_of(False, HEARTBEAT, 0, copied_all), b"\xff\xff\x00") for copied_all in (False, True)
    )
    assert (cut.facts.status, broken.facts.status) == (Status.TRUNCATED, Status.MALFORMED)


def variations(count: int, seed: int) -> list[Frame]:
    """Return frames of all cases with other numbers in them, some cut, in random order."""
    chosen = random.Random(seed)
    frames = []
    for _ in range(count):
        whole = chosen.choice(CASES)
        shape = shape_of(whole)
        data = fitting(shape, whole.data, chosen.randbytes(len(whole.data)))
        copied_all = chosen.random() < 0.9
        if not copied_all:
            data = data[: chosen.randrange(len(data))]
        facts = whole.facts
        frames.append((code_of(facts.response, facts.api_key, facts.api_version, copied_all), data))
    return frames


def packed(frames: Sequence[Frame]) -> tuple[Codes, Bytes, Integers, Integers]:
    """Return the frames as `ShapeTable.match` takes them, with noise between them."""
    noise = random.Random(1)
    data, starts = bytearray(), []
    for _, each in frames:
        data += noise.randbytes(noise.randrange(9))
        starts.append(len(data))
        data += each
    codes = np.array([code for code, _ in frames], np.uint64)
    lengths = np.array([len(each) for _, each in frames], np.int64)
    return codes, np.frombuffer(data, np.uint8), np.array(starts, np.int64), lengths


def matched(table: ShapeTable, frames: Sequence[Frame]) -> list[tuple[Shape, list[int]]]:
    """Return the shape and the values of each frame."""
    found: dict[int, tuple[Shape, list[int]]] = {}
    for _, shape, members, values in table.match(*packed(frames)):
        assert members.tolist() == sorted(members)
        assert not found.keys() & set(members.tolist())
        found.update({member: (shape, row) for member, row in zip(members.tolist(), values.tolist(), strict=True)})
    return [found[member] for member in range(len(frames))]


def assert_matched_as_decoded(table: ShapeTable, frames: list[Frame]) -> None:
    for (code, data), (shape, values) in zip(frames, matched(table, frames), strict=True):
        assert decode_code(code, data) == shape
        assert measure_values(shape, data) == values


def test_matching_is_the_same_as_decoding_each_frame() -> None:
    table = ShapeTable()
    for seed in range(3):
        assert_matched_as_decoded(table, variations(400, seed))


def test_many_frames_are_read_as_few() -> None:
    table, few = ShapeTable(), variations(100, 1)
    read = matched(table, few)
    assert matched(table, few * 200) == read * 200
    assert sum(len(values) for _, values in read) * 200 > 1 << 15  # more numbers than are read in one go


def test_frames_like_those_seen_before_are_not_decoded() -> None:
    decoded = []

    def counting(code: int, data: bytes) -> Shape:
        decoded.append(code)
        return decode_code(code, data)

    table = ShapeTable(counting)
    whole = case(PRODUCE, 9, response=False)
    code = code_of(False, PRODUCE, 9, True)
    shape = shape_of(whole)
    chosen = random.Random(1)
    for _ in range(3):
        frames = [(code, fitting(shape, whole.data, chosen.randbytes(len(whole.data)))) for _ in range(100)]
        matched(table, frames)
    assert decoded == [code]


def test_client_ids_share_a_layout_and_not_a_shape() -> None:
    frames = [(code_of(False, HEARTBEAT, 0, True), b"\x00\x03c%02d\x00\x01g" % n) for n in range(100)] * 2
    table = ShapeTable()
    shapes = [shape for shape, _ in matched(table, frames)]
    assert all(again is shape for shape, again in zip(shapes[:100], shapes[100:], strict=True))
    assert [shape.facts.client_id for shape in shapes[:100]] == [f"c{n:02d}" for n in range(100)]


def test_the_last_byte_of_a_frame_decides_at_each_width_of_rows() -> None:
    table, code = ShapeTable(), code_of(False, HEARTBEAT, 0, True)
    for length in range(20, 300):
        client_id = b"c" * (length - 5)
        head = len(client_id).to_bytes(2, "big") + client_id + b"\x00\x01"
        frames = [(code, head + group) for group in (b"g", b"h", b"g")]
        assert {len(data) for _, data in frames} == {length}
        for _ in range(2):
            assert_matched_as_decoded(table, frames)


def swapped_record_sets() -> list[Frame]:
    """Return two frames of one length that agree under the first one's mask.

    The record set of one partition is empty in each.
    """
    head = b"\xff\xff" + b"\x00\x01" + bytes(4) + b"\x00\x00\x00\x01\x00\x01t" + b"\x00\x00\x00\x02"
    empty = bytes(4)
    one_old_message, another = (
        (80).to_bytes(4, "big") + Records(b"", records, 1, 0, 0, last_offset=1 << 32).stub for records in (1, 0)
    )
    first = head + b"\x00\x00\x00\x00" + one_old_message + b"\x00\x00\x00\x01" + empty
    second = head + b"\x00\x00\x00\x00" + empty + b"\x00\x00\x00\x01" + another
    code = code_of(False, PRODUCE, 0, True)
    return [(code, first), (code, second)]


def test_a_frame_that_only_the_size_of_its_record_set_tells_apart_is_not_mistaken() -> None:
    frames = swapped_record_sets()
    (code, first), (_, second) = frames
    mask = decode_code(code, first).mask
    assert all((a ^ b) & kept == 0 for a, b, kept in zip(first, second, mask, strict=True))
    assert_matched_as_decoded(ShapeTable(), frames * 2)


def test_a_full_table_starts_anew_and_says_so() -> None:
    table = ShapeTable(limit_bytes=15_000)
    frames = [(code_of(False, HEARTBEAT, 0, True), b"\x00\x03c%02d\x00\x01g" % n) for n in range(20)]
    for expected_resets in range(3):
        assert_matched_as_decoded(table, frames)
        assert table.resets == expected_resets
        assert len(table) == 20


def test_long_frames_fill_the_table_by_their_length() -> None:
    table = ShapeTable(limit_bytes=200_000)
    client_ids = [bytes([ord("a") + n]) * 0x7FFF for n in range(8)]
    frames = [(code_of(False, HEARTBEAT, 0, True), b"\x7f\xff" + client_id + b"\x00\x01g") for client_id in client_ids]
    for expected_resets in range(3):
        assert_matched_as_decoded(table, frames)
        assert table.resets == expected_resets


def test_no_frames_and_frames_without_data_are_fine() -> None:
    table = ShapeTable()
    assert matched(table, []) == []
    assert_matched_as_decoded(table, [(code_of(True, ApiKey.SASL_AUTHENTICATE, 2, False), b"")] * 2)


def many_layouts() -> list[Frame]:
    """Return OffsetCommit requests of one length: the longer the topic, the shorter the metadata, which is skipped."""
    frames = []
    for size in range(1, 100):
        metadata, topic = (b"\x00" + bytes([n]) + b"x" * n for n in (size, 100 - size))
        head = b"\xff\xff" + b"\x00\x01g" + bytes(4) + b"\x00\x01m" + bytes(8)
        data = head + b"\x00\x00\x00\x01" + topic + b"\x00\x00\x00\x01" + bytes(12) + metadata
        frames.append((code_of(False, ApiKey.OFFSET_COMMIT, 2, True), data))
    return frames


def test_few_layouts_of_a_length_are_remembered_and_all_are_decoded_right() -> None:
    decoded = []

    def counting(code: int, data: bytes) -> Shape:
        decoded.append(data)
        return decode_code(code, data)

    frames = many_layouts()
    table = ShapeTable(counting)
    for _ in range(2):
        assert_matched_as_decoded(table, frames)
    assert len(decoded) > len(frames)


@pytest.mark.parametrize(
    ("api_key", "version", "data"),
    [
        (METADATA, 4, b"\0\1c" + (100).to_bytes(4, "big") + b"\0\0" * 100 + b"\0"),
        (METADATA, 4, b"\0\1c" + (60).to_bytes(4, "big") + b"".join(b"\0\1%c" % n for n in range(60)) + b"\0"),
        (PRODUCE, 9, case(PRODUCE, 9, response=False).data),
        (FETCH, 13, case(FETCH, 13, response=False).data),
    ],
)
def test_a_shape_takes_no_more_than_was_reckoned(api_key: int, version: int, data: bytes) -> None:
    code = code_of(False, api_key, version, copied_all=True)
    shape = decode_code(code, data)
    grown = grown_by(lambda: [decode_code(code, data) for _ in range(100)], 100)
    assert grown < shape_bytes(shape)


def test_a_text_keeps_256_bytes() -> None:
    name = b"x" * 32_000
    shape = decode_code(code_of(False, METADATA, 4, copied_all=True), len(name).to_bytes(2, "big") + name + bytes(5))
    (client_id,) = shape.facts.texts(Fact.CLIENT_ID)
    assert client_id == "x" * 256


def test_a_text_beyond_latin_1_takes_no_more() -> None:
    name = ("\N{PILE OF POO}" + "x" * 252).encode()
    shape = decode_code(code_of(False, METADATA, 4, copied_all=True), len(name).to_bytes(2, "big") + name + bytes(5))
    (client_id,) = shape.facts.texts(Fact.CLIENT_ID)
    assert client_id == "\N{PILE OF POO}" + "x" * 63
    assert sys.getsizeof(client_id) < sys.getsizeof("x" * 256) + 64
