"""The memory of offsets, exchanges and waiting requests is no more than what is reckoned for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_probe.connections import offset_facts
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.frames_by_connection import FramesByConnection
from kafka_probe.connections.offsets import Offsets
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.memory import MIB
from tests.builders.bounded_tables import RESOLVER, grown_by
from tests.builders.events import SINCE_BOOT
from tests.builders.samples import Samples, by_hand, opened


class Watched:
    """A connection, and the offsets that it shows. Nothing else keeps its shapes."""

    def __init__(self) -> None:
        self.tracker = Tracker(RESOLVER)
        self.tracker.take(opened(1)[0])
        self.reader = FrameReader(offset_facts.MEASURED)
        self.offsets = Offsets(TopicNames(), 200 * MIB)

    def see(self, frames: Samples) -> None:
        grouped = [FramesByConnection.of(each, self.tracker.of_frames) for each in self.reader.read(frames)]
        self.offsets.see(grouped, lambda _: False)

    def report(self, second: int) -> None:
        for _ in self.offsets.report(second * 10**9, 0, SINCE_BOOT):
            pass


def fetched(topic: str, partitions: int, end: int = 1 << 40) -> Samples:
    named = [{"PartitionIndex": 1000 + number, "HighWatermark": end + number} for number in range(partitions)]
    return by_hand("Fetch", 7, {"Responses": [{"Topic": topic, "Partitions": named}]}, answer=True, ts_ns=end)


def commit_request(topic: str, partitions: int) -> Samples:
    named = [{"PartitionIndex": number, "CommittedOffset": 7} for number in range(partitions)]
    return by_hand("OffsetCommit", 2, {"GroupId": f"of-{topic}", "Topics": [{"Name": topic, "Partitions": named}]})


@pytest.mark.parametrize(("topics", "partitions"), [(1, 5000), (50, 100), (1000, 1)])
def test_a_partition_takes_no_more_than_is_reckoned(topics: int, partitions: int) -> None:
    watched = Watched()
    batches = [fetched(f"topic-{number}", partitions, (1 << 40) + number) for number in range(topics)]

    def sent() -> int:
        for number, batch in enumerate(batches):
            watched.see(batch)
            watched.report(number)
        watched.reader = FrameReader(offset_facts.MEASURED)
        return watched.offsets.held_bytes

    grown = grown_by(sent, 1)
    assert 0.4 * watched.offsets.held_bytes < grown <= watched.offsets.held_bytes


@pytest.mark.parametrize("build", [fetched, commit_request])
@pytest.mark.parametrize(("topics", "partitions"), [(100, 1), (20, 50)])
def test_an_exchange_and_a_request_that_waits_take_no_more_than_is_reckoned(
    build: Callable[[str, int], Samples], topics: int, partitions: int
) -> None:
    watched = Watched()
    batches = [build(f"topic-{number}", partitions) for number in range(topics)]

    def kept() -> int:
        for batch in batches:
            watched.see(batch)
        watched.reader = FrameReader(offset_facts.MEASURED)
        return watched.offsets.exchanges.held_bytes

    watched.see(batches[0])
    before = watched.offsets.exchanges.held_bytes
    assert grown_by(kept, 1) <= watched.offsets.exchanges.held_bytes - before
