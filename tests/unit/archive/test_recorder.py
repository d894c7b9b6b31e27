"""The recorder: which frames it still has, and how much memory they take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from kafka_probe.archive.recorder import Recorder, exchange_keys
from kafka_probe.capture.sample import SAMPLE, Flag
from kafka_probe.config import LEAST_SEARCHED_BYTES
from kafka_probe.loop import _BATCH_SAMPLES
from tests.builders.samples import Samples, frame, opened, stream

MIB = 1 << 20
IDLE, OTHER = 1 << 40, 5
RESPONSE = int(Flag.RESPONSE)


def recorder(limit_bytes: int = MIB, ended: Iterable[int] = ()) -> Recorder:
    gone = frozenset(ended)
    return Recorder(limit_bytes, lambda conn: conn not in gone)


def exchange(conn: int, correlation_id: int = 1, *, data: bytes = b"asked", answer: bytes = b"answered") -> Samples:
    at = {"correlation_id": correlation_id, "ts_ns": max(correlation_id, 0) * 1000}
    return stream(frame(conn, data=data, **at), frame(conn, data=answer, flags=RESPONSE, **at))


def traffic(kept: Recorder, size_bytes: int, conns: int = 50) -> None:
    """Add frames of other connections, in arrays of 256 samples."""
    array = stream(*(exchange(OTHER + number % conns, number) for number in range(128)))
    for _ in range(size_bytes // array.nbytes + 1):
        kept.add(array)


def found(kept: Recorder, conns: Iterable[int], most: int = 100) -> Samples:
    return kept.frames_of(conns, most)


def texts(samples: Samples) -> list[bytes]:
    return [bytes(sample["data"][: sample["size"]]) for sample in samples]


def fields(samples: Samples) -> list[tuple[Any, ...]]:
    return [tuple(sample[name].tolist() for name in SAMPLE.names or ()) for sample in samples]


def test_frames_of_a_connection_are_found_among_those_of_others_in_their_order() -> None:
    kept = recorder()
    kept.add(stream(opened(IDLE), exchange(IDLE, 1, data=b"1", answer=b"2"), exchange(OTHER)))
    kept.add(stream(exchange(OTHER), exchange(IDLE, 2, data=b"3", answer=b"4")))
    assert texts(found(kept, [IDLE])) == [b"1", b"2", b"3", b"4"]
    assert len(found(kept, [IDLE, OTHER])) == 8
    assert texts(found(kept, [IDLE], 1)) == texts(found(kept, [IDLE], 0)) == [b"3", b"4"]
    assert len(found(kept, [])) == len(found(kept, [77])) == 0


def test_the_least_recorder_that_is_searched_keeps_a_whole_batch() -> None:
    kept, batch = recorder(LEAST_SEARCHED_BYTES), np.resize(exchange(IDLE), _BATCH_SAMPLES)
    batch["correlation_id"] = np.arange(_BATCH_SAMPLES) // 2
    for _ in range(3):
        kept.add(batch)
    assert len(kept.exchanges(exchange_keys(batch))) == _BATCH_SAMPLES


@pytest.mark.parametrize("conn", [1, IDLE, 2**63 + 1])
def test_the_last_exchange_outlives_any_traffic_of_others_and_is_as_it_was_read(conn: int) -> None:
    kept = recorder()
    last = exchange(conn, -2, data=b"the last request", answer=b"")
    kept.add(stream(exchange(conn, 1), exchange(OTHER), last))
    traffic(kept, 20 * MIB)
    assert fields(found(kept, [conn])) == fields(last)
    assert kept.used_bytes <= MIB
    assert kept.losses["recorder_evicted"] == 0


def test_a_request_without_its_response_is_kept_beside_the_response_before_it() -> None:
    kept = recorder()
    kept.add(exchange(IDLE, 1, data=b"1", answer=b"2"))
    traffic(kept, 2 * MIB)
    kept.add(frame(IDLE, data=b"3", correlation_id=2))
    traffic(kept, 2 * MIB)
    assert sorted(texts(found(kept, [IDLE]))) == [b"2", b"3"]


def test_all_samples_of_a_long_frame_are_kept_also_if_they_were_read_at_two_times() -> None:
    long = frame(IDLE, data=bytes(range(256)) * 4, correlation_id=7)
    assert len(long) == 5
    kept = recorder()
    kept.add(stream(exchange(IDLE), long[:2]))
    kept.add(long[2:])
    traffic(kept, 3 * MIB)
    last = found(kept, [IDLE])
    assert fields(last[last["flags"] & RESPONSE == 0]) == fields(long)


def test_a_frame_whose_first_samples_were_lost_is_neither_joined_to_the_one_before_it_nor_found() -> None:
    kept = recorder()
    kept.add(frame(IDLE, data=b"old"))
    traffic(kept, 2 * MIB)
    kept.add(frame(IDLE, data=b"x" * 500)[1:])
    traffic(kept, 2 * MIB)
    assert texts(found(kept, [IDLE])) == []


def test_of_a_very_long_frame_the_first_samples_are_kept() -> None:
    kept = recorder()
    long = frame(IDLE, data=bytes(65_536))
    kept.add(long)
    assert fields(found(kept, [IDLE], 8)) == fields(long)
    traffic(kept, 2 * MIB)
    assert fields(found(kept, [IDLE], 8)) == fields(long[:32])


def test_many_small_arrays_become_one() -> None:
    kept = recorder()
    for number in range(1000):
        kept.add(exchange(IDLE + number % 3, number + 1))
    assert len(kept._arrays) == 1
    assert found(kept, [IDLE], 2)["correlation_id"].tolist() == [997, 997, 1000, 1000]


def test_each_of_many_connections_in_one_array_keeps_its_last_exchange() -> None:
    kept = recorder(64 * MIB)
    many = range(IDLE, IDLE + 160_000, 8)
    array = np.tile(exchange(1), len(many))
    array["conn"] = np.repeat(np.array(many, np.uint64), 2)
    kept.add(array)
    traffic(kept, 64 * MIB)
    assert sorted(found(kept, many)["conn"].tolist()) == [conn for conn in many for _ in range(2)]


def test_last_frames_beyond_half_of_the_bound_are_dropped_and_counted_the_oldest_first() -> None:
    kept = recorder()
    for first in range(0, 4000, 100):
        kept.add(stream(*(exchange(100 + conn) for conn in range(first, first + 100))))
    traffic(kept, 2 * MIB)
    assert kept.used_bytes <= MIB
    left = found(kept, range(100, 4100))["conn"].tolist()
    assert kept.losses["recorder_evicted"] == 2 * 4000 - len(left)
    assert left == sorted([*range(100, 4100)] * 2)[-len(left) :]
    assert 1000 < len(left) < 6000


def test_nothing_is_kept_of_connections_that_need_no_frames_any_more() -> None:
    kept = recorder(ended=[IDLE])
    kept.add(exchange(IDLE))
    kept.add(exchange(IDLE + 1))
    traffic(kept, 2 * MIB)
    assert len(found(kept, [IDLE])) == 0
    assert len(found(kept, [IDLE + 1])) == 2
    kept.forget(IDLE + 1)
    assert len(found(kept, [IDLE + 1])) == 0


def test_of_a_correlation_id_that_is_used_again_the_last_exchange_is_found() -> None:
    kept = recorder()
    for number in range(5):
        kept.add(exchange(1, 7, data=b"asked %d" % number))
    assert texts(kept.exchanges(exchange_keys(frame(1, correlation_id=7)))) == [b"asked 4", b"answered"]


def test_exchanges_are_found_by_their_keys() -> None:
    kept = recorder()
    kept.add(stream(exchange(1, 5), exchange(1, 6, data=b"asked 6"), exchange(2, 6)))
    wanted = exchange_keys(frame(1, correlation_id=6))
    assert texts(kept.exchanges(wanted)) == [b"asked 6", b"answered"]
    assert len(kept.exchanges(wanted[:0])) == 0


def test_an_array_larger_than_the_bound_leaves_only_last_frames() -> None:
    kept = recorder(64 << 10)
    kept.add(stream(*(exchange(IDLE, number) for number in range(500))))
    assert found(kept, [IDLE], 0)["correlation_id"].tolist() == [499, 499]
    assert kept.used_bytes <= 64 << 10
