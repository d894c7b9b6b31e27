"""Measures decoding per frame on the same frames: by shape, one by one, and by kafka-python and kio.

    python -m tests.programs.bench.decode

Frames are those of a busy broker's connections: producers with one and many partitions, consumers, groups, metadata.
Their record sets are as long as the kernel's stub, so that kafka-python can decode them too. What was recorded of real
clients comes through the real capture, which needs root.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from kafka.protocol.consumer import FetchRequest, FetchResponse, HeartbeatRequest, HeartbeatResponse
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kio.index import load_payload_module
from kio.serial import entity_reader
from kio.static.constants import EntityType

from kafka_probe.capture.sample import SampleKind
from kafka_probe.connections.frame_reader import FrameReader
from kafka_probe.flow_sums import SUMMED
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.decoded import Decoded
from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.shapes import ShapeTable, code_of, decode_code
from tests.builders.recordings import names, read
from tests.builders.trees import Records, message_of
from tests.lab.capture import Capture
from tests.lab.processes import free_port
from tests.lab.replay import replaying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FRAMES = 2000
ROUNDS = 15
PARTITIONS = 100
STUB = Records(b"", 7).stub
TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")


@dataclass(frozen=True)
class Frame:
    message_class: Any
    version: int
    encoded: bytes
    code: int

    @property
    def data(self) -> bytes:
        return self.encoded[12 if self.message_class.is_request() else 8 :]


def frame(message: Any, version: int, client_id: str) -> Frame:
    request = message.is_request()
    message.API_VERSION = version
    if request:
        message.with_header(random.getrandbits(31), client_id)
    else:
        message.with_header(random.getrandbits(31))
    encoded = bytes(message.encode(header=True, framed=True))
    return Frame(type(message), version, encoded, code_of(not request, message.API_KEY, version, copied_all=True))


def produce(client: str, version: int, partitions: int) -> Frame:
    topic = ProduceRequest.TopicProduceData
    sets = [topic.PartitionProduceData(index=index, records=STUB) for index in range(partitions)]
    topics = [topic(name="orders", topic_id=TOPIC_ID, partition_data=sets)]
    return frame(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics, transactional_id=None), version, client)


def produced(version: int, partitions: int) -> Frame:
    topic = ProduceResponse.TopicProduceResponse
    sets = [
        topic.PartitionProduceResponse(index=index, error_code=0, base_offset=random.getrandbits(40))
        for index in range(partitions)
    ]
    topics = [topic(name="orders", topic_id=TOPIC_ID, partition_responses=sets)]
    return frame(ProduceResponse(responses=topics, throttle_time_ms=0), version, "")


def fetch(client: str) -> Frame:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(partition=2, fetch_offset=random.getrandbits(40))
    topics = [topic(topic="orders", topic_id=TOPIC_ID, partitions=[partition])]
    message = FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=random.getrandbits(20), topics=topics)
    message.forgotten_topics_data = []
    return frame(message, 12, client)


def fetched(records: bytes) -> Frame:
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData(partition_index=2, error_code=0, high_watermark=random.getrandbits(40))
    partition.aborted_transactions = []
    partition.records = records
    topics = [topic(topic="orders", topic_id=TOPIC_ID, partitions=[partition])]
    return frame(FetchResponse(throttle_time_ms=0, error_code=0, responses=topics if records else []), 12, "")


def heartbeat(client: str) -> Frame:
    message = HeartbeatRequest(
        group_id="billing", generation_id=3, member_id=f"{client}-6f1d2c3b-4a59-4e68-9b77-1c2d3e4f5a6b"
    )
    return frame(message, 4, client)


def metadata(client: str) -> Frame:
    topics = [MetadataRequest.MetadataRequestTopic(name="orders", topic_id=None)]
    return frame(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12, client)


KINDS: list[Callable[[str], Frame]] = [
    *[lambda client: produce(client, 9, 1)] * 6,
    *[lambda client: produce(client, 12, 4)] * 2,
    *[lambda _: produced(9, 1)] * 6,
    *[lambda _: produced(12, 4)] * 2,
    *[fetch] * 4,
    *[lambda _: fetched(STUB)] * 3,
    lambda _: fetched(b""),
    heartbeat,
    lambda _: frame(HeartbeatResponse(throttle_time_ms=0, error_code=0), 4, ""),
    metadata,
]


def compare(title: str, frames: int, work: dict[str, Callable[[], object]]) -> None:
    """Run the ways in turn, so that load on the machine affects all alike; the last one is the yardstick."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, run in work.items():
            taken[name].append(microseconds(run, frames))
    print(f"\n{title}\nµs CPU per frame            min   median      max   kafka-python is")
    yardstick = statistics.median(taken["kafka-python"])
    for name, times in taken.items():
        middle = statistics.median(times)
        print(f"{name:24} {min(times):7.2f}  {middle:7.2f}  {max(times):7.2f}  {yardstick / middle:7.2f} times that")


def exhaust(results: Iterable[object]) -> None:
    """Consume an iterator and keep nothing of it."""
    deque(results, maxlen=0)


def decoded_cold(frames: list[bytes]) -> Iterator[Decoded]:
    for data in frames:
        yield decode(False, ApiKey.PRODUCE, 9, data, copied_all=True)


def decoded_by_kafka_python(frames: list[Frame]) -> None:
    for one in frames:
        one.message_class.decode(one.encoded, version=one.version, header=True, framed=True)


def microseconds(work: Callable[[], object], frames: int) -> float:
    gc.collect()
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e6 / frames


def short_frames() -> None:
    compare_shapes("short frames", [random.choice(KINDS)(f"client-{random.randrange(10)}") for _ in range(FRAMES)])


def long_frames() -> None:
    frames = [produce(f"client-{index % 5}", 9, PARTITIONS) for index in range(50)]
    compare_shapes(f"Produce requests with {PARTITIONS} partitions", frames)


def compare_shapes(what: str, frames: list[Frame]) -> None:
    items = [(each.code, each.data) for each in frames]
    codes = np.array([each.code for each in frames], np.uint64)
    lengths = np.array([len(each.data) for each in frames])
    data = np.frombuffer(b"".join(each.data for each in frames), np.uint8)
    table = ShapeTable()
    match = partial(table.match, codes, data, lengths.cumsum() - lengths, lengths)
    exhaust(match())
    compare(
        f"{len(frames)} {what}, {len(set(zip(codes, lengths, strict=True)))} groups, {len(table)} shapes",
        len(frames),
        {
            "matched by shape": lambda: exhaust(match()),
            "decoded one by one": lambda: exhaust(map(decode_code, *zip(*items, strict=True))),
            "kafka-python": lambda: decoded_by_kafka_python(frames),
        },
    )


def cold_frame() -> None:
    """Decode a Produce request without a known shape, as the kernel leaves it, against codecs that get all of it."""
    records = Records(bytes(502))
    topic = {"Name": "orders", "PartitionData": [{"Index": 2, "Records": records}]}
    message = message_of("Produce", False, 9, {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [topic]})
    wire, body = message.frame(), message.body
    read = entity_reader(load_payload_module(0, 9, EntityType.request).ProduceRequest)
    compare(
        f"a Produce 9 request of {len(wire)} bytes, cold",
        FRAMES,
        {
            "decoded": lambda: exhaust(decoded_cold([message.data] * FRAMES)),
            "decoded, with its shape": lambda: exhaust(map(Decoded.shape, decoded_cold([message.data] * FRAMES))),
            "kio, body only": lambda: exhaust(map(read, [body] * FRAMES, [0] * FRAMES)),
            "kafka-python": lambda: decoded_by_kafka_python([Frame(ProduceRequest, 9, wire, 0)] * FRAMES),
        },
    )


def recorded_frames() -> None:
    """Measure how long the agent's reader takes for recorded frames of real clients and their broker."""
    port = free_port()
    with closing(Capture(port)) as capture:
        for name in names():
            with replaying(read(name), port):
                pass
        samples = capture.samples()
    frames = samples[samples["kind"] == SampleKind.FRAME]
    batch = np.tile(frames, 8)
    reader = FrameReader(SUMMED)
    exhaust(reader.read(batch))
    whole = int((frames["part"] == 0).sum()) * 8
    taken = [microseconds(lambda: exhaust(reader.read(batch)), whole) for _ in range(ROUNDS)]
    print(f"\n{whole} recorded frames, read as the agent does, µs CPU per frame")
    print(f"min {min(taken):.2f}, median {statistics.median(taken):.2f}, max {max(taken):.2f}")


def main() -> None:
    random.seed(1)
    cold_frame()
    short_frames()
    recorded_frames()
    long_frames()


if __name__ == "__main__":
    main()
