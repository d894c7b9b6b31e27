"""Declares the `offsets` event: ends of partitions, and positions that consumer groups have committed."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kafka_probe.events.shared_fields import KIND, TOPIC_ID, Origin, Stamped


class SeenOffset(TypedDict):
    """An offset of a partition, and the time of the response that confirmed it."""

    cluster_id: Annotated[str | None, "Kafka cluster id; null: not seen on a connection to the broker"]
    broker: Annotated[str | None, "address:port of the broker's end of the connection, if cluster_id is null"]
    topic: Annotated[str | None, "topic name; null: only the id is known"]
    topic_id: Annotated[str | None, f"{TOPIC_ID}; null: not known"]
    partition: Annotated[int, "partition index"]
    seen: Annotated[int, "time of the response, µs since epoch"]


class PartitionEnd(SeenOffset):
    """The end of a partition."""

    offset: Annotated[int, "offset after that of the last record, as the newest response shows it"]
    source: Annotated[
        str,
        "fetch: high watermark; produce: base offset plus records, which followers may not have yet; "
        "list_offsets: response to a request for the end",
    ]


class GroupPosition(SeenOffset):
    """The position of a consumer group in a partition."""

    group: Annotated[str, "consumer group"]
    offset: Annotated[int, "committed offset: that of the next record to consume"]
    source: Annotated[
        str, "offset_commit: a commit that the broker confirmed; offset_fetch: the broker returned the position"
    ]


class OffsetsEvent(Origin, Stamped):
    """Ends and positions that changed, each at most once per 30 seconds, and the others once per hour."""

    kind: Annotated[Literal["offsets"], KIND]
    partition_ends: Annotated[list[PartitionEnd], "ends of partitions that changed, or that the agent sent an hour ago"]
    group_positions: Annotated[list[GroupPosition], "positions of consumer groups, likewise"]
