"""What a decoded frame says, as frozen values: facts, measures, and the shape that ties them to bytes.

Frames of one connection repeat except for a few fixed-width numbers. A shape is what all frames have in common that
agree in the bytes under its mask: equal facts, and equal places of the measures, the numbers to be read from each.
What is steady is a fact; what varies from frame to frame, and every number of a partition, is a measure.
All are named tuples, because to make a frozen dataclass takes three times as long.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import NamedTuple

from kafka_probe.protocol.api_keys import ApiKey

TEXT_CHARACTERS = 256
"""What is kept of a text: Kafka's longest names have 249 bytes, a client id can have 32,767."""

_KEY_IS_GROUP, _KEY_IS_TRANSACTION = 0, 1


class Status(Enum):
    """How far a frame was decoded."""

    COMPLETE = "complete"  # every fact was read; bytes that carry none may be missing
    HEADER_ONLY = "header_only"  # the body of this API never leaves the kernel, see rules.py
    TRUNCATED = "truncated"  # the bytes ended before the facts did
    UNKNOWN_API = "unknown_api"
    UNKNOWN_VERSION = "unknown_version"
    MALFORMED = "malformed"  # not what Kafka defines: a negative length, or an end in the middle of a whole frame


class Fact(Enum):
    """What a value is: of a frame, not of one of its topics. The words are those that the coverage table shows."""

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
    KEY_TYPE = "key type"  # of FindCoordinator: says what its keys are
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
    SESSION_EPOCH = "session epoch"  # 1 for all above 0: the number itself is a measure
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
    """What a measure counts. Topic and partition are set where the number is one of a partition, else -1."""

    RECORDS = "records"  # of a record set; absent where the kernel could not count them
    BATCHES = "batches"  # with RECORDS
    RECORD_BYTES = "record bytes"  # size of a record set, always above 0
    UNCOUNTED_BYTES = "uncounted bytes"  # RECORD_BYTES once more, of a set whose records could not be counted
    BATCH_PRODUCER_ID = "batch producer id"  # of the first batch of magic 2, -1 for none
    BATCH_PRODUCER_EPOCH = "batch producer epoch"
    OFFSET = "offset"  # asked for (Fetch), committed (OffsetCommit, OffsetFetch) or given (Produce, ListOffsets)
    HIGH_WATERMARK = "high watermark"
    LOW_WATERMARK = "low watermark"
    LAST_STABLE_OFFSET = "last stable offset"
    START_OFFSET = "start offset"  # of a log or of a share group's partition
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
    OFFSET_EPOCH = "offset epoch"  # the leader's when the offset was committed, fetched or ended
    PARTITION_EPOCH = "partition epoch"
    REPLICA_EPOCH = "partition replica epoch"
    STATE_EPOCH = "state epoch"
    PRODUCER_ID = "partition producer id"  # of an active producer or an aborted transaction
    PRODUCER_EPOCH = "partition producer epoch"
    PARTITION_MAX_BYTES = "partition maximum bytes"
    SESSION_EPOCH = "session epoch"  # always above 0: 0 and -1 are facts
    THROTTLE_MS = "throttle time"


POSITIVE = frozenset(
    {MeasureKind.RECORD_BYTES, MeasureKind.SESSION_EPOCH}
)  # a frame whose number is not above 0 has another shape


class Encoding(Enum):
    """How a measure stands in the data."""

    SIGNED = auto()  # big-endian two's complement
    COMPACT_LENGTH = auto()  # unsigned varint, minus 1 (KIP-482)


class Measure(NamedTuple):
    """A number of `width` bytes at `offset` of the data. `topic` is an index into the facts' topics."""

    kind: MeasureKind
    topic: int
    partition: int
    offset: int
    width: int
    encoding: Encoding


class SetStatus(IntEnum):
    """What the kernel could count of a record set: enum set_status of bpf/sample.h, the status in its stub."""

    COUNTED = 0
    UNREADABLE = 1  # nothing could be read, as with sendfile
    PARTIAL = 2  # the broker cut the last batch, which clients leave aside: not counted, and not missing
    WRAPPER = 3  # compressed messages of magic 0 or 1 hide how many they are
    IMPLAUSIBLE = 4  # a batch names a count of records that its bytes cannot hold


class RecordSet(NamedTuple):
    """A record set that is not empty, as the kernel's stub tells it. `topic` is an index into the facts' topics;
    `status` is of SetStatus, magic and codec are of its first batch; transactional and control hold if any batch is."""

    topic: int
    partition: int
    status: int
    magic: int
    codec: int
    transactional: bool
    control: bool


class TopicFacts(NamedTuple):
    """A topic that a frame names. `topic_id` has 32 hexadecimal digits; name and id are None where not given."""

    name: str | None
    topic_id: str | None
    partitions: tuple[int, ...]  # indexes, as they stand in the frame
    errors: tuple[tuple[int, int], ...]  # (partition, code), code 0 left out; partition -1: the topic itself


class Facts(NamedTuple):
    """What is equal for all frames of one shape. The properties below name the values that others ask for."""

    response: bool
    api_key: int
    api_version: int
    status: Status
    stopped_at: str | None = None  # path of the field where a truncated or malformed frame ended
    values: tuple[tuple[Fact, str | int], ...] = ()  # in the order of the frame; null is left out
    errors: tuple[tuple[int, int], ...] = ()  # (code, count) over all levels, code 0 left out
    topics: tuple[TopicFacts, ...] = ()
    forgotten: tuple[TopicFacts, ...] = ()  # what a fetch session shall no longer hold (KIP-227)
    record_sets: tuple[RecordSet, ...] = ()

    def texts(self, fact: Fact) -> tuple[str, ...]:
        """All values of a fact whose values are texts."""
        return tuple(value for found, value in self.values if found is fact and isinstance(value, str))

    def numbers(self, fact: Fact) -> tuple[int, ...]:
        """All values of a fact whose values are numbers."""
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
        """The broker or controller that asks as a replica. A consumer says -1, since Fetch 15 nothing (KIP-903)."""
        number = self.number(Fact.REPLICA_ID)
        return None if number is None or number < 0 else number

    @property
    def cluster_id(self) -> str | None:
        return self.text(Fact.CLUSTER_ID)

    @property
    def incremental(self) -> bool:
        """The request names only what changed in its session (KIP-227, KIP-932). Every other names all."""
        return self.number(Fact.SESSION_EPOCH) == 1

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that the frame names, each once. What a response's keys are, only its request says."""
        keys = self._keys(_KEY_IS_GROUP)
        return tuple(dict.fromkeys(self.texts(Fact.GROUP) + keys))

    @property
    def group(self) -> str | None:
        """The group, if the frame names exactly one (OffsetFetch 8 and newer may ask for many)."""
        groups = self.groups
        return groups[0] if len(groups) == 1 else None

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.texts(Fact.TRANSACTIONAL_ID) + self._keys(_KEY_IS_TRANSACTION)))

    @property
    def has_records(self) -> bool:
        """A record set is not empty: a Fetch was answered with data."""
        return bool(self.record_sets)

    @property
    def topic_names(self) -> tuple[tuple[str, str], ...]:
        """(topic id, name) pairs to be learned, where a broker or controller says both (KIP-516): not of clients'
        requests, which may claim anything."""
        if not self.response and self.api_key not in (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA):
            return ()
        return tuple((topic.topic_id, topic.name) for topic in self.topics if topic.topic_id and topic.name)

    def _keys(self, key_type: int) -> tuple[str, ...]:
        """FindCoordinator's keys of a type; its version 0 knows groups only."""
        asked = self.number(Fact.KEY_TYPE) if self.api_version else _KEY_IS_GROUP
        return self.texts(Fact.KEY) if asked == key_type and not self.response else ()


class Shape(NamedTuple):
    """Facts and measures of every frame whose data fits; `used_bytes` of the data were walked over for them.

    A frame fits if it has the same direction, API, version, copied_all and length, equal bytes under the mask (one mask
    byte per data byte: 0xFF decides, 0x00 does not, 0x80 decides by its top bit only), and if its POSITIVE measures are
    above 0: no mask can say "not zero", and a record set of no bytes has another layout.
    """

    facts: Facts
    mask: bytes
    measures: tuple[Measure, ...]
    used_bytes: int


def shape_bytes(shape: Shape) -> int:
    """Return about how much memory a shape takes, rounded up: of few bytes many topics without names can be made."""
    facts = shape.facts
    parts = facts.values, facts.errors, facts.topics, facts.forgotten, facts.record_sets, shape.measures
    return 512 + 12 * len(shape.mask) + 128 * sum(map(len, parts))


def cut(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """Return the first characters of a text, or a quarter of them beyond Latin-1: each takes up to four bytes then."""
    text = text[:characters]
    return text if max(text, default="") <= "\xff" else text[: characters // 4]


def text_bytes(text: str, characters: int = TEXT_CHARACTERS) -> int:
    """Return about how much memory a cut text takes, rounded up: beyond ASCII with its UTF-8, which JSON leaves."""
    # Of the characters up to U+00FF each takes one byte and two of UTF-8, of a quarter as many others four and four.
    return 64 + len(text) if text.isascii() else 80 + min(8 * len(text), 3 * characters)


def measure_values(shape: Shape, data: bytes) -> list[int]:
    """The values of the shape's measures in the data of one frame that fits it, in their order."""
    return [_value(measure, data) for measure in shape.measures]


def _value(measure: Measure, data: bytes) -> int:
    raw = data[measure.offset : measure.offset + measure.width]
    if measure.encoding is Encoding.SIGNED:
        return int.from_bytes(raw, "big", signed=True)
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(raw)) - 1
