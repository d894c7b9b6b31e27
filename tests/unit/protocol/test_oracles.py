"""Messages of every version with arbitrary values: other codecs read the same from the bytes as we do.

kio and kafka-python read the bytes to their end, name each value as we do, and write the same bytes again. We are given
what the kernel leaves of them.
"""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import UnknownAPIKey, UnknownEntity, load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from kafka_probe.protocol.facts import measure_values
from kafka_probe.protocol.schemas import Api, apis
from tests.builders.expected import expected
from tests.builders.trees import Message, Records, generated
from tests.builders.wire import API_VERSIONS
from tests.unit.protocol.cuts import shape_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib.resources.read_text
    from kafka.protocol import admin, consumer, metadata, producer, sasl

SEEDS = range(3)
# Versions that Kafka 4 dropped and no client speaks: we have only Kafka's own definitions for them.
WITHOUT_ORACLE = {
    "LeaderAndIsr": range(8),
    "StopReplica": range(5),
    "UpdateMetadata": range(9),
    "ControlledShutdown": range(4),
    "CreateDelegationToken": range(1),
    "RenewDelegationToken": range(1),
    "ExpireDelegationToken": range(1),
    "DescribeDelegationToken": range(1),
    "AlterPartition": range(2),
    "ShareGroupHeartbeat": range(1),
    "ShareGroupDescribe": range(1),
    "ShareFetch": range(1),
    "ShareAcknowledge": range(1),
}
BOTH = pytest.mark.parametrize("response", [False, True], ids=["request", "response"])
EVERY_API = pytest.mark.parametrize("api", apis().values(), ids=lambda api: api.name)
MESSAGE_CLASSES: list[Any] = [
    found
    for module in (admin, consumer, metadata, producer, sasl)
    for name, found in vars(module).items()
    if re.fullmatch(r"\w+(Request|Response)", name) and not name.startswith("SaslBytes")  # has no schema
]
KAFKA_PYTHON = {(found.API_KEY, not found.is_request()): found for found in MESSAGE_CLASSES}


def messages(api: Api, response: bool) -> list[Message]:
    return [generated(api, response, version, seed) for version in api.versions for seed in SEEDS]


@EVERY_API
@BOTH
def test_facts_and_measures_are_those_of_the_message(api: Api, response: bool) -> None:
    for message in messages(api, response):
        assert_found(message)


@settings(max_examples=300)
@given(st.sampled_from(list(apis().values())), st.booleans(), st.data())
def test_whatever_the_message_says_is_found(api: Api, response: bool, draw: st.DataObject) -> None:
    version = draw.draw(st.sampled_from(list(api.versions)))
    assert_found(generated(api, response, version, draw.draw(st.integers(0))))


def assert_found(message: Message) -> None:
    data, wanted = message.data, expected(message)
    shape = shape_of(message, data)
    assert shape.facts == wanted.facts(message), message
    values = measure_values(shape, data)
    found = [(m.kind, m.topic, m.partition, value) for m, value in zip(shape.measures, values, strict=True)]
    assert found == wanted.measured, message


@EVERY_API
@BOTH
def test_kio_reads_the_same_values(api: Api, response: bool) -> None:
    for message in messages(api, response):
        entity = kio_entity(message)
        if entity is not None:
            body = message.body
            read, size = entity_reader(entity)(body, 0)
            assert size == len(body), message
            assert as_read(read, message.tree) == message.tree, message
            written = io.BytesIO()
            entity_writer(entity)(written, read)
            # What is as it is by default, they leave out.
            assert (written.getvalue() == body) or entity_reader(entity)(written.getvalue(), 0)[0] == read, message


@pytest.mark.parametrize("key", KAFKA_PYTHON, ids=lambda key: KAFKA_PYTHON[key].__name__)
def test_kafka_python_reads_the_same_values(key: tuple[int, bool]) -> None:
    theirs, (api_key, response) = KAFKA_PYTHON[key], key
    for message in messages(apis()[api_key], response):
        # kafka-python reads ApiVersions responses with any error as version 0; brokers do so with error 35 only.
        if message.version <= theirs.max_version and not (api_key == API_VERSIONS and message.tree.get("ErrorCode")):
            how = {"version": message.version, "header": True, "framed": True}
            read = theirs.decode(message.frame(), **how)
            assert as_read(read, message.tree) == message.tree, message
            written = bytes(read.encode(header=True, framed=True))
            assert written == message.frame() or theirs.decode(written, **how) == read, message


@EVERY_API
@BOTH
def test_every_version_has_an_oracle(api: Api, response: bool) -> None:
    theirs = KAFKA_PYTHON.get((api.key, response))
    without = [
        version
        for version in api.versions
        if kio_entity(generated(api, response, version, 0)) is None and (theirs is None or version > theirs.max_version)
    ]
    assert without == list(WITHOUT_ORACLE.get(api.name, ()))


def kio_entity(message: Message) -> Any:
    """Return kio's class for the message, None if it has none."""
    try:
        module = load_payload_module(
            message.api.key, message.version, EntityType.response if message.response else EntityType.request
        )
    except (UnknownEntity, UnknownAPIKey):
        return None
    return getattr(module, message.api.name + ("Response" if message.response else "Request"))


def as_read(theirs: Any, ours: Any) -> Any:
    """Return another codec's reading, in the form of our tree and by its names."""
    match ours:
        case dict():
            return {name: as_read(getattr(theirs, attribute(theirs, name)), value) for name, value in ours.items()}
        case list():
            return [as_read(*pair) for pair in zip(theirs, ours, strict=True)]
        case Records():
            return ours._replace(data=bytes(theirs))
    match theirs:
        case timedelta():
            return theirs // timedelta(milliseconds=1)
        case datetime():
            return round(theirs.timestamp() * 1000)
        case UUID():
            return theirs.bytes
        case set():  # the bits that are set
            return sum(1 << bit for bit in theirs)
        case None if isinstance(ours, bytes):
            return bytes(16)
    return theirs


def attribute(theirs: Any, name: str) -> str:
    """Return the other codec's name of a field, which has underscores.

    kio leaves units away, kafka-python whose operations are authorized.
    """
    if dataclasses.is_dataclass(theirs):
        names = [field.name for field in dataclasses.fields(theirs)]
    else:
        names = list(theirs.fields)
    name = name.lower()
    alike = [each for each in names if name.startswith(each.replace("_", "")) or name.endswith(each.replace("_", ""))]
    return max(alike, key=len)
