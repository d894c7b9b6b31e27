"""Finding the shape of one frame at a time is the same as decoding it, and bounded."""

from __future__ import annotations

import random

from kafka_probe.protocol.facts import Shape, measure_values
from kafka_probe.protocol.long_shapes import LongShapes
from kafka_probe.protocol.shapes import code_of, decode_code
from tests.unit.protocol.test_shapes import many_layouts, swapped_record_sets, variations


def assert_found_as_decoded(shapes: LongShapes, code: int, data: bytes) -> None:
    shape, values = shapes.find(code, data)
    assert shape == decode_code(code, data)
    assert values.tolist() == [measure_values(shape, data)]


def test_finding_is_the_same_as_decoding() -> None:
    shapes = LongShapes()
    for code, data in variations(1500, seed=7):
        assert_found_as_decoded(shapes, code, data)


def test_a_frame_like_one_seen_before_is_not_decoded() -> None:
    decoded = []

    def counting(code: int, data: bytes) -> Shape:
        decoded.append(data)
        return decode_code(code, data)

    shapes = LongShapes(counting)
    for throttle_ms in range(100):
        shapes.find(code_of(True, 12, 1, True), throttle_ms.to_bytes(4, "big") + b"\0\0")
    assert len(decoded) == 1


def test_a_frame_that_only_the_size_of_its_record_set_tells_apart_is_not_mistaken() -> None:
    shapes = LongShapes()
    for code, data in swapped_record_sets() * 2:
        assert_found_as_decoded(shapes, code, data)


def test_what_it_holds_is_bounded() -> None:
    shapes = LongShapes(limit_bytes=10_000)
    chosen = random.Random(3)
    for _ in range(100):
        client_id = chosen.randbytes(500).hex().encode()
        assert_found_as_decoded(shapes, code_of(False, 12, 0, True), len(client_id).to_bytes(2, "big") + client_id)
    assert shapes.resets > 5


def test_few_layouts_of_a_length_are_remembered_and_all_are_decoded_right() -> None:
    decoded = []

    def counting(code: int, data: bytes) -> Shape:
        decoded.append(data)
        return decode_code(code, data)

    shapes = LongShapes(counting)
    frames = many_layouts()
    for code, data in frames * 2:
        assert_found_as_decoded(shapes, code, data)
    assert len(decoded) > len(frames)
