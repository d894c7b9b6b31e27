"""Builds exchanges that show offsets, and an agent that keeps these."""

from __future__ import annotations

from typing import Any

from kafka_probe.connections import offset_facts
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.connections.offsets import Offsets
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.flow_sums import SUMMED
from tests.builders.bounded_tables import Watched
from tests.builders.event_schema import assert_body_valid
from tests.builders.events import SINCE_BOOT
from tests.builders.messages import GROUP, TOPIC, TOPIC_ID
from tests.builders.samples import Samples, by_hand
from tests.builders.trees import Records, Tree

NAMED: Tree = {"Name": TOPIC, "Topic": TOPIC, "TopicId": TOPIC_ID.bytes}
SECOND_NS = 1_000_000_000


class OffsetsAgent(Watched):
    """Connections 1 and 2, and the offsets that they show."""

    def __init__(self, connections: int = 2) -> None:
        super().__init__(connections)
        self.reader = FrameReader((*SUMMED, *offset_facts.MEASURED))
        self.now_ns = SECOND_NS

    def limit(self, size_bytes: int) -> None:
        """Replace the table by one of this size."""
        self.offsets = self.dispatcher._offsets = Offsets(TopicNames(), size_bytes)

    def rows(self, *samples: Samples, after_ns: int = 0) -> list[Any]:
        """Return the rows of an interval: group or None, topic, partition, offset, source."""
        if samples:
            self.see(*samples)
        self.now_ns += after_ns
        rows = []
        for event in self.offsets.report(self.now_ns, self.now_ns // 1000, SINCE_BOOT):
            assert_body_valid(event)
            rows += [(None, *_row(end)) for end in event["partition_ends"]]
            rows += [(position["group"], *_row(position)) for position in event["group_positions"]]
        return rows

    @property
    def left_out(self) -> int:
        return self.offsets.losses["offset_limit"]


def _row(row: Any) -> tuple[Any, ...]:
    return row["topic"] or row["topic_id"], row["partition"], row["offset"], row["source"]


def exchange(name: str, version: int, asked: Tree, answered: Tree, conn: int = 1, number: int = 5) -> list[Samples]:
    """Return a request and its response, a millisecond later."""
    ask = by_hand(name, version, asked, conn, correlation_id=number, ts_ns=number * 10**6)
    return [ask, by_hand(name, version, answered, conn, answer=True, correlation_id=number, ts_ns=(number + 1) * 10**6)]


def committed(
    offset: int, partition: int = 4, *, version: int = 8, error: int = 0, group: str = GROUP, **fields: int
) -> list[Samples]:
    asked = [{**NAMED, "Partitions": [{"PartitionIndex": partition, "CommittedOffset": offset}]}]
    answered = [{**NAMED, "Partitions": [{"PartitionIndex": partition, "ErrorCode": error}]}]
    return exchange("OffsetCommit", version, {"GroupId": group, "Topics": asked}, {"Topics": answered}, **fields)


def fetched(end: int, *, version: int = 12, error: int = 0, ts_ns: int = 0, conn: int = 1) -> Samples:
    partitions = [{"PartitionIndex": 4, "ErrorCode": error, "HighWatermark": end, "Records": Records(b"")}]
    topics = [{**NAMED, "Partitions": partitions}]
    return by_hand("Fetch", version, {"Responses": topics}, conn, answer=True, ts_ns=ts_ns)


def produced(base: int, records: Records, *, version: int = 9, error: int = 0, acks: int = -1) -> list[Samples]:
    asked = [{**NAMED, "PartitionData": [{"Index": 4, "Records": records}]}]
    answered = [{**NAMED, "PartitionResponses": [{"Index": 4, "ErrorCode": error, "BaseOffset": base}]}]
    return exchange("Produce", version, {"Acks": acks, "TopicData": asked}, {"Responses": answered})


def listed(timestamp: int, offset: int, *, version: int = 7, error: int = 0, isolation: int = 0) -> list[Samples]:
    asked = [{**NAMED, "Partitions": [{"PartitionIndex": 4, "Timestamp": timestamp, "MaxNumOffsets": 2}]}]
    found = {"Offset": offset, "OldStyleOffsets": [offset, offset - 9], "Timestamp": -1}
    answered = [{**NAMED, "Partitions": [{"PartitionIndex": 4, "ErrorCode": error, **found}]}]
    return exchange("ListOffsets", version, {"IsolationLevel": isolation, "Topics": asked}, {"Topics": answered})


def asked_position(
    offset: int, *, version: int = 7, error: int = 0, error_of_all: int = 0, groups: tuple[str, ...] = (GROUP,)
) -> list[Samples]:
    topics = [{**NAMED, "PartitionIndexes": [4]}]
    of_groups = [{"GroupId": group, "Topics": topics} for group in groups]
    partition = {"PartitionIndex": 4, "CommittedOffset": offset, "ErrorCode": error}
    found = {"Topics": [{**NAMED, "Partitions": [partition]}], "ErrorCode": error_of_all}
    return exchange(
        "OffsetFetch",
        version,
        {"GroupId": groups[0], "Topics": topics, "Groups": of_groups},
        {**found, "Groups": [{"GroupId": group, **found} for group in groups]},
    )


def named(version: int, first_with_ids: int) -> str:
    return TOPIC_ID.hex if version >= first_with_ids else TOPIC
