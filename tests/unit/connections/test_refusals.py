"""Records that a broker did not write count as refused, by the topic of the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from kafka_probe.connections.frames import FrameReader
from kafka_probe.connections.refusals import LOSSES, Refusals, Sums
from kafka_probe.protocol.facts import MeasureKind
from tests.builders.samples import Samples, by_hand, stream
from tests.builders.trees import Records

NOT_LEADER, TIMED_OUT = 6, 7
MANY = 1 << 20


def produced(correlation_id: int, conn: int = 1, *, acks: int = -1, topics: tuple[str, ...] = ("orders",)) -> Samples:
    """Return a request for each topic: 7 records of 500 bytes for partition 0, and 2 of 100 for partition 1."""
    first, second = Records(bytes(500), records=7), Records(bytes(100), records=2)
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
    """What is refused of samples that are seen in batches."""

    def __init__(self, limit_bytes: int = MANY) -> None:
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self._refusals = Refusals(limit_bytes, self.losses)
        self._reader = FrameReader()

    def see(self, *samples: Samples) -> dict[int, Sums]:
        """Return the sums of a batch by connection."""
        batch = list(self._reader.read(stream(*samples)))
        for frames in batch:
            self._refusals.see(frames)
        sums: dict[int, Sums] = {}
        for frames in batch:
            for conn, by_topic in self._refusals.refused(frames).items():
                for topic, of_topic in by_topic.items():
                    sums.setdefault(conn, {}).setdefault(topic, Counter()).update(of_topic)
        return sums


def counts(records: int, size: int) -> Counter[MeasureKind]:
    return Counter({MeasureKind.RECORDS: records, MeasureKind.RECORD_BYTES: size})


@pytest.mark.parametrize("batches", [1, 2])
def test_the_partitions_with_an_error_are_refused_and_no_others(batches: int) -> None:
    watched = Watched()
    asked = produced(1, topics=("orders", "sales")), produced(2, topics=("orders", "sales"))
    refused = answered(2, {("orders", 0): NOT_LEADER, ("orders", 1): 0, ("sales", 1): NOT_LEADER})
    sums = watched.see(*asked, answered(1, {}), refused) if batches == 1 else watched.see(*asked) | watched.see(refused)
    assert sums == {1: {("orders", None): counts(7, 500), ("sales", None): counts(2, 100)}}


def test_the_same_correlation_id_on_another_connection_is_another_request() -> None:
    watched = Watched()
    watched.see(produced(1, 1, topics=("orders",)), produced(1, 2, topics=("sales",)))
    sums = watched.see(answered(1, {("sales", 0): NOT_LEADER}, conn=2))
    assert sums == {2: {("sales", None): counts(7, 500)}}


def test_what_the_leader_has_written_is_not_refused() -> None:
    watched = Watched()
    assert watched.see(produced(1), answered(1, {("orders", 0): TIMED_OUT})) == {}
    assert watched.losses["refusal_unmatched"] == 0


def test_a_response_whose_request_is_not_known_is_counted() -> None:
    watched = Watched(limit_bytes=0)
    assert watched.see(produced(1), answered(1, {("orders", 0): NOT_LEADER})) == {}
    assert watched.losses["refusal_unmatched"] == 1


def test_requests_that_have_no_response_are_not_kept() -> None:
    watched = Watched()
    watched.see(produced(1, acks=0))
    assert watched._refusals._held_bytes == 0


def test_what_is_kept_stays_below_the_limit_and_the_newest_stays() -> None:
    watched = Watched(limit_bytes=20_000)
    for number in range(200):
        watched.see(produced(number))
        assert watched._refusals._held_bytes <= 20_000
    assert watched.see(answered(0, {("orders", 0): NOT_LEADER})) == {}
    assert watched.see(answered(199, {("orders", 0): NOT_LEADER})) == {1: {("orders", None): counts(7, 500)}}
    assert watched.losses["refusal_unmatched"] == 1
