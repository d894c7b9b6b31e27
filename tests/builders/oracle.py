"""Reads whole frames with kio's codecs, which others generated from Kafka's definitions.

kio keeps the types of values in the definitions (TopicName, GroupId), so names are found by type and not by a list.
"""

from __future__ import annotations

import dataclasses
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from kio.index import load_request_schema, load_response_schema
from kio.schema.types import GroupId, TopicName
from kio.serial import entity_reader

from kafka_probe.protocol.facts import TopicFacts
from tests.builders.recordings import Request

_BATCH_OVERHEAD = 12  # base offset and length, before the bytes that the length counts
_BATCH = struct.Struct(">qiibIhiqqqhii")  # of magic 2: base offset to record count
_TRANSACTIONAL, _CONTROL, _CODEC = 0x10, 0x20, 0x07
_PARTITION_INDEX = ("partition_index", "partition", "partition_id", "index")


@dataclass(frozen=True, slots=True)
class Batch:
    """The header of a record batch."""

    records: int
    codec: int
    transactional: bool
    control: bool
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int


def read_body(request: Request, *, response: bool) -> Any:
    """Read the body of a request or of its response.

    Raises:
        NotImplementedError: kio does not know the version.
    """
    load = load_response_schema if response else load_request_schema
    schema = load(request.api_key, request.api_version)
    frame = request.response if response else request.frame
    assert frame is not None
    _, start = entity_reader(schema.__header_schema__)(frame.data, 0)
    body, size = entity_reader(schema)(frame.data, start)
    assert start + size == len(frame.data), f"{schema.__name__} v{request.api_version}: bytes are left"
    return body


def leaves(entity: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every field that is no structure, in the order of the frame."""
    for name, _, value in _typed(entity):
        yield name, value


def errors(body: Any) -> dict[int, int]:
    """Count each error code in it, at any level; 0 is none."""
    return dict(Counter(int(value) for name, value in leaves(body) if name.endswith("error_code") and value))


def groups(body: Any) -> set[str]:
    """Return its groups."""
    # requests about a share group's state have a group id of another type
    found = {value for name, kind, value in _typed(body) if value and (kind is GroupId or name == "group_id")}
    if type(body).__name__ == "FindCoordinatorRequest" and getattr(body, "key_type", 0) == 0:
        found.update((body.key,) if hasattr(body, "key") else body.coordinator_keys)
    return found


def record_sets(body: Any) -> list[bytes]:
    """Return its non-empty record sets."""
    return [bytes(value) for name, value in leaves(body) if name == "records" and value]


def batches(record_set: bytes) -> Iterator[Batch]:
    """Return the batches of a record set, all of magic 2 and complete."""
    at = 0
    while at < len(record_set):
        header = _BATCH.unpack_from(record_set, at)
        first, size, _, magic, _, attributes, last_delta, _, _, producer_id, epoch, _, records = header
        assert magic == 2
        transactional, control = bool(attributes & _TRANSACTIONAL), bool(attributes & _CONTROL)
        offsets = first, first + last_delta
        yield Batch(records, attributes & _CODEC, transactional, control, producer_id, epoch, *offsets)
        at += _BATCH_OVERHEAD + size
    assert at == len(record_set)


def forgotten(body: Any) -> list[TopicFacts]:
    """Return the topics that a fetch session must drop."""
    return [topic for each in getattr(body, "forgotten_topics_data", ()) for topic in _topics(each)]


def topics(body: Any) -> list[TopicFacts]:
    """Return its topics in order, without those that a fetch session drops."""
    return list(_topics(body))


def _topics(entity: Any) -> Iterator[TopicFacts]:
    fields = {field.name: field for field in dataclasses.fields(entity) if field.name != "forgotten_topics_data"}
    named = [name for name, field in fields.items() if field.type in (TopicName, TopicName | None)]
    if named or "topic_id" in fields:
        name = getattr(entity, named[0]) if named else None
        topic_id = getattr(entity, "topic_id", None)
        yield TopicFacts(name, topic_id.hex if topic_id else None, *_partitions(entity))
        return
    for name in fields:
        value = getattr(entity, name)
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                yield from _topics(each)
            elif each is not None and _is(fields[name].type, TopicName):
                yield TopicFacts(each, None, (), ())


def _partitions(topic: Any) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    indexes: list[int] = []
    codes = [(-1, topic.error_code)] if hasattr(topic, "error_code") else []
    for field in dataclasses.fields(topic):
        value = getattr(topic, field.name)
        for each in value if isinstance(value, tuple) else ():
            place = next((name for name in _PARTITION_INDEX if hasattr(each, name)), None)
            if place is not None:
                indexes.append(getattr(each, place))
                codes += [(indexes[-1], code) for name, code in _errors_of(each)]
            elif field.name.startswith("partition"):
                indexes.append(each)
    return tuple(indexes), tuple((index, int(code)) for index, code in codes if code)


def _errors_of(entity: Any) -> Iterator[tuple[str, int]]:
    return (
        (field.name, getattr(entity, field.name))
        for field in dataclasses.fields(entity)
        if field.name.endswith("error_code")
    )


def _typed(entity: Any) -> Iterator[tuple[str, Any, Any]]:
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                yield from _typed(each)
            else:
                kind = next((kind for kind in (GroupId, TopicName) if _is(field.type, kind)), None)
                yield field.name, kind, each


def _is(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(_is(argument, kind) for argument in get_args(annotation))
