"""Records that a broker did not write count as refused, by the topic of the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.refusals import Keys, Refusals, Sums
from kafka_probe.protocol.facts import MeasureKind
from tests.builders.bounded_tables import grown_by
from tests.builders.samples import Samples, by_hand, stream
from tests.builders.trees import Records

NOT_LEADER = 6
MANY = 1 << 20


def produced(
    correlation_id: int, conn: int = 1, *, records: int = 7, acks: int = -1, topics: tuple[str, ...] = ("orders",)
) -> Samples:
    """Return a request with records of 10 bytes for partition 0 of each topic, and 2 more for partition 1."""
    first, second = Records(bytes(10 * records), records=records), Records(bytes(100), records=2)
    sets = [{"Index": 0, "Records": first}, {"Index": 1, "Records": second}]
    tree = {"Acks": acks, "TopicData": [{"Name": topic, "PartitionData": sets} for topic in topics]}
    return by_hand("Produce", 9, tree, conn, correlation_id=correlation_id)


def answered(correlation_id: int, errors: Mapping[tuple[str, int], int], conn: int = 1) -> Samples:
    """Return a response with the error codes of partitions, by topic and partition."""
    topics = [
        {"Name": topic, "PartitionResponses": [{"Index": partition, "ErrorCode": code}]}
        for (topic, partition), code in errors.items()
    ]
    return by_hand("Produce", 9, {"Responses": topics}, conn, answer=True, correlation_id=correlation_id)


class Watched:
    """Keeps the requests of batches, and returns what their responses refused."""

    def __init__(self, limit_bytes: int = MANY) -> None:
        self.refusals = Refusals(limit_bytes)
        self._reader = FrameReader()

    def see(self, *samples: Samples) -> dict[int, Sums]:
        """Return the sums of a batch by connection."""
        return self.see_batch(stream(*samples))

    def see_batch(self, samples: Samples) -> dict[int, Sums]:
        batch = list(self._reader.read(samples))
        for frames in batch:
            self.refusals.see(frames)
        sums: dict[int, Sums] = {}
        for frames in batch:
            for conn, by_topic in self.refusals.refused(frames).items():
                for topic, of_topic in by_topic.items():
                    sums.setdefault(conn, {}).setdefault(topic, Counter()).update(of_topic)
        return sums


def counts(records: int, size: int) -> Counter[MeasureKind]:
    return Counter({MeasureKind.RECORDS: records, MeasureKind.RECORD_BYTES: size})


ORDERS, REFUSED = ("orders", None), {("orders", 0): NOT_LEADER}


@pytest.mark.parametrize("batches", [1, 2])
def test_the_partitions_with_an_error_are_refused_and_no_others(batches: int) -> None:
    watched = Watched()
    asked = produced(1, topics=("orders", "sales")), produced(2, topics=("orders", "sales"))
    refused = answered(2, {("orders", 0): NOT_LEADER, ("orders", 1): 0, ("sales", 1): NOT_LEADER})
    sums = watched.see(*asked, answered(1, {}), refused) if batches == 1 else watched.see(*asked) | watched.see(refused)
    assert sums == {1: {ORDERS: counts(7, 70), ("sales", None): counts(2, 100)}}


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3)])
def test_each_response_refuses_the_records_of_its_own_request(order: tuple[int, ...]) -> None:
    """The requests have one shape: two connections use the same ids for different numbers of records."""
    requests = {1: (1, 1, 10), 2: (2, 1, 20), 3: (1, 2, 40), 4: (2, 2, 80)}  # correlation id, connection, records
    watched = Watched()
    watched.see(*(produced(number, conn, records=records) for number, conn, records in requests.values()))
    for one in order:
        number, conn, records = requests[one]
        assert watched.see(answered(number, REFUSED, conn)) == {conn: {ORDERS: counts(records, 10 * records)}}
    assert watched.refusals.unmatched == 0


def test_a_request_is_refused_once_however_often_its_id_is_repeated() -> None:
    watched = Watched()
    sums = watched.see(produced(1, records=1000), *[answered(1, REFUSED)] * 5)
    assert sums == {1: {ORDERS: counts(1000, 10_000)}}
    assert watched.refusals.unmatched == 4


def test_of_requests_with_one_id_the_newest_is_refused_first() -> None:
    watched = Watched()
    watched.see(produced(1, records=1000))
    watched.see(produced(1, records=3))
    assert watched.see(answered(1, REFUSED)) == {1: {ORDERS: counts(3, 30)}}
    assert watched.see(answered(1, REFUSED)) == {1: {ORDERS: counts(1000, 10_000)}}


@pytest.mark.parametrize(("code", "refused"), [(NOT_LEADER, True), (46, True), (7, False), (20, False)])
def test_what_the_leader_has_written_is_not_refused(code: int, refused: bool) -> None:
    watched = Watched()
    assert bool(watched.see(produced(1), answered(1, {("orders", 0): code}))) is refused
    assert watched.refusals.unmatched == 0


def test_a_response_whose_request_is_not_known_is_counted() -> None:
    watched = Watched(limit_bytes=0)
    assert watched.see(produced(1), answered(1, REFUSED)) == {}
    assert watched.refusals.unmatched == 1


def test_requests_that_have_no_response_are_not_kept() -> None:
    watched = Watched()
    watched.see(produced(1, acks=0))
    assert watched.refusals.held_bytes == 0


def test_what_is_kept_stays_below_the_limit_and_the_newest_stays() -> None:
    watched = Watched(limit_bytes=MANY)
    for number in range(1000):
        watched.see(produced(number))
        assert watched.refusals.held_bytes <= MANY
    assert watched.see(answered(0, REFUSED)) == {}
    assert watched.see(answered(999, REFUSED)) == {1: {ORDERS: counts(7, 70)}}
    assert watched.refusals.unmatched == 1


def test_all_requests_of_a_busy_partition_are_kept() -> None:
    watched, numbers = Watched(limit_bytes=2 * MANY), range(2000)
    watched.see(*map(produced, numbers))
    sums = watched.see(*(answered(number, REFUSED) for number in numbers))
    assert sums == {1: {ORDERS: counts(7 * len(numbers), 70 * len(numbers))}}
    assert watched.refusals.unmatched == 0


def test_of_too_many_requests_of_one_shape_the_newest_are_kept() -> None:
    watched, numbers = Watched(limit_bytes=MANY // 4), range(2000)
    watched.see(*map(produced, numbers))
    assert watched.refusals.held_bytes <= MANY // 4
    assert watched.see(answered(1999, REFUSED)) == {1: {ORDERS: counts(7, 70)}}
    assert watched.see(answered(0, REFUSED)) == {}


def test_a_request_that_would_displace_those_of_others_is_not_kept() -> None:
    watched = Watched(limit_bytes=MANY)
    watched.see(produced(1), produced(2, topics=tuple(f"topic-{number}" for number in range(200))))
    assert watched.see(answered(1, REFUSED)) == {1: {ORDERS: counts(7, 70)}}
    assert watched.see(answered(2, {("topic-1", 0): NOT_LEADER})) == {}


def test_kept_requests_take_no_more_memory_than_was_counted_whatever_else_is_in_their_batch() -> None:
    others = [produced(number, acks=0) for number in range(300)]
    batches = [stream(*others, produced(number)) for number in range(50)]
    watched = Watched()
    watched.see_batch(batches[0])

    def keep_all() -> Watched:
        for batch in batches[1:]:
            watched.see_batch(batch)
        watched.see(answered(-1, REFUSED))  # makes the index
        return watched

    before = watched.refusals.held_bytes
    grown = grown_by(keep_all, 1)
    assert grown < watched.refusals.held_bytes - before


def test_the_requests_are_sorted_once_for_all_responses_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search per shape and kept batch would take seconds."""
    watched, numbers, sorts = Watched(), range(100), Counter[str]()
    for number in numbers:
        watched.see(produced(number, topics=(f"topic-{number}",)))

    def argsort(keys: Keys, **options: Any) -> Any:
        sorts["all"] += 1
        return np.argsort(keys, **options)

    monkeypatch.setattr("kafka_probe.connections.refusals.np", SimpleNamespace(**vars(np) | {"argsort": argsort}))
    sums = watched.see(*(answered(number, {(f"topic-{number}", 0): NOT_LEADER}) for number in numbers))
    assert len(sums[1]) == len(numbers)
    assert sorts["all"] == 1
