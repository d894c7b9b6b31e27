"""Samples become frames: joined, grouped by shape, and every loss is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.capture.sample import DATA_BYTES, SAMPLE, Flag, SampleKind
from kafka_probe.connections.frame_reader import FrameReader, Frames
from kafka_probe.connections.reassembly import Reassembler, portions
from kafka_probe.protocol.api_keys import ApiKey
from tests.builders.messages import CASES, Case, case
from tests.builders.samples import Samples, by_hand, message, request, response, stream

if TYPE_CHECKING:
    from collections.abc import Iterable

METADATA, FETCH = ApiKey.METADATA, ApiKey.FETCH
LONG = [c for c in CASES if len(c.data) > DATA_BYTES]
NOTHING_LOST = dict.fromkeys(FrameReader().losses, 0)


def named(whole: Case) -> str:
    return whole.name


def read(*batches: Samples) -> list[Frames]:
    reader = FrameReader()
    frames = [group for batch in batches for group in reader.read(batch)]
    assert reader.losses == NOTHING_LOST
    return frames


def contents(frames: Iterable[Frames]) -> list[tuple[object, list[int]]]:
    return [(group.shape.facts, row) for group in frames for row in group.values.tolist()]


@pytest.mark.parametrize("whole", CASES, ids=named)
def test_a_frame_has_the_facts_and_values_of_its_message(whole: Case) -> None:
    assert contents(read(message(whole))) == [(whole.facts, [value for *_, value in whole.values])]


@given(st.sampled_from(CASES), st.integers(1, DATA_BYTES))
def test_a_frame_is_the_same_in_however_many_samples(whole: Case, sample_bytes: int) -> None:
    assert contents(read(message(whole, sample_bytes=sample_bytes))) == contents(read(message(whole)))


def test_a_frame_is_joined_across_batches() -> None:
    samples = message(LONG[0])
    assert contents(read(samples[:1], samples[1:])) == contents(read(samples))


@pytest.mark.parametrize(("most_bytes", "number"), [(10**6, 1), (100 * 20, 1), (100 * 20 - 1, 2), (1, 20)])
def test_portions_are_of_equal_size_and_have_all_samples_in_order(most_bytes: int, number: int) -> None:
    samples = stream(*(message(LONG[0])[:1] for _ in range(20)))
    samples["flags"], samples["size"] = 0, 100
    samples["correlation_id"] = range(20)
    found = list(portions(samples, most_bytes))
    assert {len(portion) for portion in found} == {20 // number}
    assert np.concatenate(found)["correlation_id"].tolist() == [*range(20)]


@given(
    st.lists(st.tuples(st.sampled_from([*SampleKind]), st.booleans(), st.integers(0, 3), st.integers(0, DATA_BYTES))),
    st.integers(1, 2000),
)
def test_a_portion_has_the_bytes_of_one_frame_too_many_at_most(
    fields: list[tuple[SampleKind, bool, int, int]], most_bytes: int
) -> None:
    samples = np.zeros(1 + len(fields), SAMPLE)
    samples["conn"] = range(len(samples))
    for sample, (kind, more, part, size) in zip(samples, fields, strict=False):
        sample["kind"], sample["flags"], sample["part"], sample["size"] = kind, more * Flag.MORE, part, size
    found = list(portions(samples, most_bytes))
    assert np.concatenate(found)["conn"].tolist() == [*range(len(samples))]
    for portion in found:
        ends = portion[(portion["kind"] == SampleKind.FRAME) & (portion["flags"] == 0)]
        sizes = [part * DATA_BYTES + size for part, size in ends[["part", "size"]].tolist()]
        assert len(portion)
        assert sum(sizes) <= most_bytes + max(sizes, default=0)


def test_a_frame_may_be_longer_than_a_sample_can_say() -> None:
    topics = [f"topic-{n:05}" for n in range(6_000)]
    samples = by_hand("Metadata", 1, {"Topics": [{"Name": topic} for topic in topics]})
    assert samples["size"].sum() > 0xFFFF
    (group,) = read(samples)
    assert [topic.name for topic in group.shape.facts.topics] == topics


def test_frames_that_fill_their_sample_are_read_between_others_and_at_the_end() -> None:
    every = [by_hand("Metadata", 1, {"Topics": [{"Name": "t" * length}]}) for length in range(1, DATA_BYTES)]
    frames = [samples for samples in every if len(samples) == 1]
    assert frames[-1]["size"].tolist() == [DATA_BYTES]
    reader = FrameReader()
    for batch in (stream(*frames), stream(*reversed(frames)), stream(*frames)):
        groups = reader.read(batch)
        names = [(group.index.tolist(), group.shape.facts.topics[0].name or "") for group in groups]
        assert sorted((int(batch["size"][at]), len(name)) for index, name in names for at in index) == [
            (samples["size"][0], length) for length, samples in enumerate(frames, 1)
        ]


def test_the_sample_of_a_joined_frame_is_its_first() -> None:
    samples = message(LONG[0], correlation_id=7)
    samples["ts_ns"] = 1000 + np.arange(len(samples))
    (group,) = read(samples)
    assert group.column("ts_ns").tolist() == [1000]
    assert group.column("correlation_id").tolist() == [7]


def test_frames_of_two_connections_and_both_directions_may_interleave() -> None:
    pair = (case(METADATA, 12, response=False), case(METADATA, 12, response=True))
    samples = stream(*(message(whole, conn, sample_bytes=20) for conn in (1, 2) for whole in pair))
    interleaved = samples[np.argsort(samples["part"], kind="stable")]
    by_direction = sorted(group.shape.facts.response for group in read(interleaved) for _ in group.index)
    assert by_direction == [False, False, True, True]
    assert all(group.shape.facts in (pair[0].facts, pair[1].facts) for group in read(interleaved))


def test_frames_are_grouped_by_shape_in_the_order_of_their_samples() -> None:
    samples = stream(
        *(request(METADATA, 12, conn, correlation_id=n) for n, conn in enumerate((1, 2, 1))), response(FETCH, 4)
    )
    groups = {group.shape.facts.api_key: group for group in read(samples)}
    assert groups[METADATA].column("correlation_id").tolist() == [0, 1, 2]
    assert groups[METADATA].column("conn").tolist() == [1, 2, 1]
    assert len(groups[FETCH].index) == 1


def test_no_samples_are_no_frames() -> None:
    assert read(np.zeros(0, SAMPLE)) == []


def test_a_frame_that_was_not_copied_to_its_end_is_truncated_and_counted_so() -> None:
    whole = case(METADATA, 12, response=True)
    reader = FrameReader()
    (group,) = reader.read(message(Case(whole.data[:40], whole.facts, [], whole.wire), flags=Flag.CUT))
    assert group.shape.facts.status.value == "truncated"
    assert reader.losses["frame_truncated"] == 1


@pytest.mark.parametrize("missing", range(4))
def test_a_frame_that_misses_a_sample_is_counted_once_and_not_read(missing: int) -> None:
    whole = case(METADATA, 12, response=True)
    samples = message(whole, sample_bytes=len(whole.data) // 4 + 1)
    assert len(samples) == 4
    reader = FrameReader()
    frames = list(reader.read(np.delete(samples, missing)))
    next_one = message(whole, sample_bytes=len(whole.data) // 4 + 1)
    frames += list(reader.read(next_one))
    assert contents(frames) == contents(read(next_one))
    assert reader.losses["frame_incomplete"] == 1


def test_the_rest_of_another_frame_does_not_complete_one() -> None:
    first, second = (message(LONG[0], sample_bytes=len(LONG[0].data) // 2 + 1, correlation_id=n) for n in (1, 2))
    reader = FrameReader()
    assert list(reader.read(stream(first[:1], second[1:]))) == []
    assert reader.losses["frame_incomplete"] == 2


@pytest.mark.parametrize("conn", [1, 2**63 + 1], ids=["now", "after 417 days without a reboot"])
def test_what_a_connection_left_unfinished_is_counted_at_its_end(conn: int) -> None:
    reader = FrameReader()
    assert list(reader.read(message(LONG[0], conn=conn)[:1])) == []
    reader.forget(2)
    assert reader.losses["frame_incomplete"] == 0
    reader.forget(conn)
    reader.forget(conn)
    assert reader.losses["frame_incomplete"] == 1


def test_of_too_many_unfinished_frames_the_oldest_go() -> None:
    reassembler = Reassembler(limit_bytes=3000)
    whole = case(METADATA, 12, response=True)
    begun = {conn: message(whole, conn, sample_bytes=20) for conn in range(1, 11)}
    for samples in begun.values():
        reassembler.join(samples[:1])
    assert 0 < len(reassembler.unfinished()) < 5
    assert reassembler.losses["frame_limit"] == 10 - len(reassembler.unfinished())
    assert len(reassembler.join(begun[10][1:]).firsts) == 1
    assert len(reassembler.join(begun[1][1:]).firsts) == 0
