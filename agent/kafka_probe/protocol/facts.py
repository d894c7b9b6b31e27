"""Defines the values that the decoder returns: facts, measures, and the shape that maps them to bytes.

Frames of one connection are equal except for a few fixed-width numbers. Frames that agree in the bytes under a mask
share a shape: they have equal facts, and their measures, the numbers to read from each frame, have equal offsets.
Steady values are facts; values that vary from frame to frame, and all numbers of partitions, are measures.
All are named tuples, because creating a frozen dataclass takes three times as long.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import NamedTuple

TEXT_CHARACTERS = 256
"""Most characters kept of a text: Kafka's longest names have 249 bytes, a client id can have 32,767."""

_KEY_IS_GROUP, _KEY_IS_TRANSACTION = 0, 1


class Status(Enum):
    """The decoding status of a frame."""

    COMPLETE = "complete"  # every fact was read; bytes without facts may be missing
    HEADER_ONLY = "header_only"  # the body of this API is never copied to user space, see kernel_allow_list.py
    TRUNCATED = "truncated"  # the data ended before the last fact
    UNKNOWN_API = "unknown_api"
    UNKNOWN_VERSION = "unknown_version"
    MALFORMED = "malformed"  # violates Kafka's definition: a negative length, or a whole frame that ends inside a field


class Fact(Enum):
    """The kind of a value of the frame itself, not of one of its topics. The coverage table shows these names."""

    CLIENT_ID = "client id"
    SOFTWARE_NAME = "software name"
    SOFTWARE_VERSION = "software version"
    MECHANISM = "SASL mechanism"
    MECHANISM_OFFERED = "SASL mechanism offered"
    CLUSTER_ID = "cluster id"
    BROKER_ID = "broker id"
    CONTROLLER_ID = "controller id"
    VOTER_ID = "voter id"
    LEADER_ID = "leader id"
    REPLICA_ID = "replica id"
    HOST = "host"
    PORT = "port"
    API_KEY = "API key"
    MIN_VERSION = "minimum version"
    MAX_VERSION = "maximum version"
    KEY_TYPE = "key type"  # of FindCoordinator: the kind of its keys
    KEY = "key"
    GROUP = "group"
    GROUP_TYPE = "group type"
    GROUP_PROTOCOL = "group protocol"
    ASSIGNOR = "assignor"
    MEMBER_ID = "member id"
    LEADING_MEMBER_ID = "leading member id"
    INSTANCE_ID = "instance id"
    CLIENT_INSTANCE_ID = "client instance id"
    TRANSACTIONAL_ID = "transactional id"
    PRODUCER_ID = "producer id"
    PRODUCER_EPOCH = "producer epoch"
    GENERATION = "generation"
    MEMBER_EPOCH = "member epoch"
    GROUP_EPOCH = "group epoch"
    ASSIGNMENT_EPOCH = "assignment epoch"
    TOPOLOGY_EPOCH = "topology epoch"
    ENDPOINT_EPOCH = "endpoint epoch"
    BROKER_EPOCH = "broker epoch"
    CONTROLLER_EPOCH = "controller epoch"
    COORDINATOR_EPOCH = "coordinator epoch"
    LEADER_EPOCH = "leader epoch"
    REPLICA_EPOCH = "replica epoch"
    FEATURES_EPOCH = "features epoch"
    SESSION_ID = "session id"
    SESSION_EPOCH = "session epoch"  # 1 for all values above 0: the number itself is a measure
    ISOLATION_LEVEL = "isolation level"
    ACKS = "acks"
    TIMEOUT_MS = "timeout"
    SESSION_TIMEOUT_MS = "session timeout"
    REBALANCE_TIMEOUT_MS = "rebalance timeout"
    TRANSACTION_TIMEOUT_MS = "transaction timeout"
    LOCK_TIMEOUT_MS = "lock timeout"
    HEARTBEAT_INTERVAL_MS = "heartbeat interval"
    MAX_WAIT_MS = "maximum wait"
    MIN_BYTES = "minimum bytes"
    MAX_BYTES = "maximum bytes"
    MAX_RECORDS = "maximum records"


class MeasureKind(Enum):
    """The kind of a measure. Its topic and partition are set if the number belongs to a partition, else -1."""

    RECORDS = "records"  # of a record set; absent if the kernel could not count them
    BATCHES = "batches"  # of a record set; present with RECORDS
    RECORD_BYTES = "record bytes"  # size of a record set, always above 0
    UNCOUNTED_BYTES = "uncounted bytes"  # RECORD_BYTES again, of a set whose records the kernel could not count
    BATCH_FIRST_OFFSET = "first offset of the records"  # of the first batch of a record set, -1 if none was read
    BATCH_LAST_OFFSET = "last offset of the records"  # of the last batch that was read
    BATCH_PRODUCER_ID = "batch producer id"  # of the first batch of magic 2, -1 for none
    BATCH_PRODUCER_EPOCH = "batch producer epoch"
    OFFSET = "offset"  # committed (OffsetCommit, OffsetFetch) or returned (Produce, ListOffsets)
    FETCH_OFFSET = "fetch offset"  # requested (Fetch): apart from OFFSET, so that it need not be read with it
    TIMESTAMP = "timestamp"  # of ListOffsets: that of a record, or a negative number with a meaning, as -1: the end
    HIGH_WATERMARK = "high watermark"
    LOW_WATERMARK = "low watermark"
    LAST_STABLE_OFFSET = "last stable offset"
    START_OFFSET = "start offset"  # of a log, of a share group's partition or of a producer's transaction
    END_OFFSET = "end offset"
    FIRST_OFFSET = "first offset"  # of a batch acquired or acknowledged, or of an aborted transaction
    LAST_OFFSET = "last offset"
    LAG = "lag"
    TASK_OFFSET = "task offset"  # of a task of Kafka Streams
    METADATA_OFFSET = "metadata offset"
    LEADER_ID = "partition leader id"
    READ_REPLICA = "read replica"
    REPLICA_ID = "partition replica id"
    BROKER_EPOCH = "partition broker epoch"
    CONTROLLER_EPOCH = "partition controller epoch"
    COORDINATOR_EPOCH = "partition coordinator epoch"
    LEADER_EPOCH = "partition leader epoch"
    OFFSET_EPOCH = "offset epoch"  # leader epoch of the committed, the last fetched or the end offset
    PARTITION_EPOCH = "partition epoch"
    REPLICA_EPOCH = "partition replica epoch"
    STATE_EPOCH = "state epoch"
    PRODUCER_ID = "partition producer id"  # of an active producer or an aborted transaction
    PRODUCER_EPOCH = "partition producer epoch"
    PARTITION_MAX_BYTES = "partition maximum bytes"
    SESSION_EPOCH = "session epoch"  # always above 0: 0 and -1 are facts
    THROTTLE_MS = "throttle time"
    REASON_BYTES = "length of the reason"  # why a member joins or leaves (KIP-800), negative for null
    HIDDEN_BYTES = "lengths of hidden fields"  # of other strings and bytes that stay in the kernel, likewise


POSITIVE = frozenset(
    {MeasureKind.RECORD_BYTES, MeasureKind.SESSION_EPOCH}
)  # a frame in which one of these is not above 0 has another shape


class Encoding(Enum):
    """The encoding of a measure in the data."""

    SIGNED = auto()  # big-endian two's complement
    COMPACT_LENGTH = auto()  # unsigned varint, minus 1 (KIP-482)


class Measure(NamedTuple):
    """A number of `width` bytes at `offset` in the data. `topic` is an index into the facts' topics."""

    kind: MeasureKind
    topic: int
    partition: int
    offset: int
    width: int
    encoding: Encoding


class SetStatus(IntEnum):
    """The result of the kernel's count of a record set: enum set_status of bpf/sample.h, the status in its stub."""

    COUNTED = 0
    UNREADABLE = 1  # a batch header is in no readable buffer, as with sendfile
    PARTIAL = 2  # the broker cut the last batch, which clients ignore: it is not counted, and not missing
    WRAPPER = 3  # compressed messages of magic 0 or 1 hide their number
    IMPLAUSIBLE = 4  # a batch claims a record count that its bytes cannot hold, or a magic above 2


class RecordSet(NamedTuple):
    """A record set that is not empty, as described by the kernel's stub.

    `topic` is an index into the facts' topics; `status` is a SetStatus; magic and codec are those of the last batch
    that the kernel read; transactional and control are true if any batch is.
    """

    topic: int
    partition: int
    status: int
    magic: int
    codec: int
    transactional: bool
    control: bool


class TopicFacts(NamedTuple):
    """A topic that a frame names. `topic_id` has 32 hexadecimal digits; name and id are None if absent."""

    name: str | None
    topic_id: str | None
    partitions: tuple[int, ...]  # indexes in the order of the frame
    errors: tuple[tuple[int, int], ...]  # (partition, code) without code 0; partition -1: the topic itself


class Facts(NamedTuple):
    """The values that are equal in all frames of one shape. The properties name those that other modules use."""

    response: bool
    api_key: int
    api_version: int
    status: Status
    stopped_at: str | None = None  # path of the field where decoding of a truncated or malformed frame stopped
    values: tuple[tuple[Fact, str | int], ...] = ()  # in the order of the frame, without nulls
    errors: tuple[tuple[int, int], ...] = ()  # (code, count) over all levels, without code 0
    topics: tuple[TopicFacts, ...] = ()
    forgotten: tuple[TopicFacts, ...] = ()  # topics to remove from the fetch session (KIP-227)
    record_sets: tuple[RecordSet, ...] = ()

    def texts(self, fact: Fact) -> tuple[str, ...]:
        """Return all values of a fact whose values are texts."""
        return tuple(value for found, value in self.values if found is fact and isinstance(value, str))

    def numbers(self, fact: Fact) -> tuple[int, ...]:
        """Return all values of a fact whose values are numbers."""
        return tuple(value for found, value in self.values if found is fact and isinstance(value, int))

    def text(self, fact: Fact) -> str | None:
        return next(iter(self.texts(fact)), None)

    def number(self, fact: Fact) -> int | None:
        return next(iter(self.numbers(fact)), None)

    @property
    def client_id(self) -> str | None:
        return self.text(Fact.CLIENT_ID)

    @property
    def software_name(self) -> str | None:
        return self.text(Fact.SOFTWARE_NAME)

    @property
    def software_version(self) -> str | None:
        return self.text(Fact.SOFTWARE_VERSION)

    @property
    def acks(self) -> int | None:
        return self.number(Fact.ACKS)

    @property
    def replica_id(self) -> int | None:
        """Return the id of the broker or controller that sends the request as a replica, else None.

        A consumer sends -1, and since Fetch 15 nothing (KIP-903).
        """
        number = self.number(Fact.REPLICA_ID)
        return None if number is None or number < 0 else number

    @property
    def cluster_id(self) -> str | None:
        return self.text(Fact.CLUSTER_ID)

    @property
    def incremental(self) -> bool:
        """Return True if the request names only its session's changes (KIP-227, KIP-932). Others name everything."""
        return self.number(Fact.SESSION_EPOCH) == 1

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the groups that the frame names, each once. Keys of responses do not count: they have no key type."""
        keys = self._keys(_KEY_IS_GROUP)
        return tuple(dict.fromkeys(self.texts(Fact.GROUP) + keys))

    @property
    def group(self) -> str | None:
        """Return the group if the frame names exactly one, else None (OffsetFetch 8 and newer may name several)."""
        groups = self.groups
        return groups[0] if len(groups) == 1 else None

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.texts(Fact.TRANSACTIONAL_ID) + self._keys(_KEY_IS_TRANSACTION)))

    @property
    def has_records(self) -> bool:
        """Return True if a record set is not empty, as in a Fetch response with data."""
        return bool(self.record_sets)

    @property
    def topic_names(self) -> tuple[tuple[str, str], ...]:
        """Return the (topic id, name) pairs of a response (KIP-516).

        Those of a request are ignored: any client can send an UpdateMetadata or LeaderAndIsr with false names.
        """
        if not self.response:
            return ()
        return tuple((topic.topic_id, topic.name) for topic in self.topics if topic.topic_id and topic.name)

    def _keys(self, key_type: int) -> tuple[str, ...]:
        """Return the keys of a FindCoordinator request that have this type; its version 0 contains groups only."""
        requested = self.number(Fact.KEY_TYPE) if self.api_version else _KEY_IS_GROUP
        return self.texts(Fact.KEY) if requested == key_type and not self.response else ()


class Shape(NamedTuple):
    """Facts and measures of every frame that fits the shape; decoding read the first `used_bytes` of the data.

    A frame fits if it has the same direction, API, version, copied_all and length, equal bytes under the mask, and
    POSITIVE measures above 0: no mask can express "not zero", and a record set of no bytes has another layout. The mask
    has one byte per data byte: 0xFF compares it, 0x00 ignores it, 0x80 compares its top bit only.
    """

    facts: Facts
    mask: bytes
    measures: tuple[Measure, ...]
    used_bytes: int


def shape_bytes(shape: Shape) -> int:
    """Return the approximate memory of a shape in bytes, rounded up: few bytes can encode many topics without names."""
    facts = shape.facts
    parts = facts.values, facts.errors, facts.topics, facts.forgotten, facts.record_sets, shape.measures
    return 512 + 12 * len(shape.mask) + 128 * sum(map(len, parts))


def cut(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """Return the first characters of a text: a quarter as many beyond Latin-1, where each takes up to four bytes."""
    text = text[:characters]
    return text if max(text, default="") <= "\xff" else text[: characters // 4]


def text_bytes(text: str, characters: int = TEXT_CHARACTERS) -> int:
    """Return the approximate memory of a cut text in bytes, rounded up.

    A text beyond ASCII also takes the memory of its UTF-8, which Python caches when the text is encoded as JSON.
    """
    # Each character takes up to 1 byte and 2 of UTF-8, or 4 and 4 if one is beyond U+00FF: then `cut` keeps a quarter.
    return 64 + len(text) if text.isascii() else 80 + min(8 * len(text), 3 * characters)


def measure_values(shape: Shape, data: bytes) -> list[int]:
    """Return the values of the shape's measures in the data of one frame that fits it, in the shape's order."""
    return [_value(measure, data) for measure in shape.measures]


def _value(measure: Measure, data: bytes) -> int:
    raw = data[measure.offset : measure.offset + measure.width]
    if measure.encoding is Encoding.SIGNED:
        return int.from_bytes(raw, "big", signed=True)
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(raw)) - 1
