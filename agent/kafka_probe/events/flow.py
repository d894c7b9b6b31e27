"""Declares the `flow` event: the traffic of one connection and API in an interval."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kafka_probe.events.codecs import CODEC_NAMES
from kafka_probe.events.shared_fields import (
    ACKS,
    ERRORS,
    KIND,
    SINCE,
    TOPIC_ID,
    TOPIC_NAME,
    ApiFacts,
    ConnectionFacts,
    Stamped,
)

LATENCY = "bucket to count; bucket i holds (2^(i/8), 2^((i+1)/8)] seconds"


class RefusedFacts(TypedDict, total=False):
    """Counts of what the broker did not write; absent if it wrote everything."""

    refused_records: Annotated[
        int,
        "records that the broker did not write, counted when it responds with an error, or closes after acks=0",
    ]
    refused_bytes: Annotated[int, "size of their record sets"]


class FlowTopic(RefusedFacts):
    """The counts of one topic in a `flow` event."""

    topic: Annotated[str | None, TOPIC_NAME]
    topic_id: Annotated[
        str | None,
        f"{TOPIC_ID}, if the API version has it; if topic is null, too, the entry sums all "
        "topics that exceed the bound of the table, see topic_limit",
    ]
    requests: Annotated[int, "requests for the topic, by name, by id or by fetch session (KIP-227)"]
    partitions: Annotated[int, "distinct partitions named in the interval"]
    records: Annotated[int, "records in the record batches that could be read"]
    batches: Annotated[int, "record batches that could be read"]
    bytes: Annotated[int, "size of all record sets"]
    uncounted_bytes: Annotated[int, "part of bytes whose batches could not be read (sendfile); records excludes it"]
    codecs: Annotated[dict[str, int], f"codec of the last batch ({CODEC_NAMES}) to count of record sets"]
    errors: Annotated[dict[str, int], ERRORS]


class FlowEvent(ConnectionFacts, ApiFacts, Stamped):
    """The traffic of one connection, API and API version in an interval."""

    kind: Annotated[Literal["flow"], KIND]
    since: Annotated[int, SINCE]
    internal: Annotated[bool, "true: traffic of a kafka-probe agent itself, without API and topics"]
    requests: Annotated[int, "requests seen"]
    responses: Annotated[int, "responses seen"]
    request_bytes: Annotated[int, "size of the requests with their length prefix"]
    response_bytes: Annotated[int, "size of the responses with their length prefix"]
    errors: Annotated[dict[str, int], "error code to count, over all levels of the responses, without code 0"]
    latency: Annotated[
        dict[str, int], f"time from request to response, {LATENCY}; of Fetch and ShareFetch: responses with data"
    ]
    latency_empty: Annotated[dict[str, int], f"the same of Fetch and ShareFetch responses without data, {LATENCY}"]
    throttle_ms: Annotated[int, "sum of the throttle times in the responses"]
    acks: Annotated[int | None, f"{ACKS}; null: the requests differ"]
    group: Annotated[
        str | None,
        "consumer group in the requests; of APIs without one, such as Fetch, the group in other requests of the client",
    ]
    transactional_id: Annotated[str | None, "transactional id; null: the requests have none, or different ones"]
    replica_id: Annotated[
        int | None, "broker or controller that sent the requests as a replica; null: the client is no replica"
    ]
    topics: Annotated[list[FlowTopic], "counts by topic"]
