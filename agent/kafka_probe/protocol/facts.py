"""What a decoded frame says, as frozen values: facts, measures, and the shape that ties them to bytes.

Frames of one connection repeat except for a few fixed-width numbers. A shape is what all frames have in common that
agree in the bytes under its mask: equal facts, and equal places of the measures, the numbers to be read from each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Status(Enum):
    """How far a frame was decoded."""

    COMPLETE = "complete"  # every fact was read; bytes that carry none may be missing
    HEADER_ONLY = "header_only"  # the body of this API never leaves the kernel, see rules.py
    TRUNCATED = "truncated"  # the bytes ended before the facts did
    UNKNOWN_API = "unknown_api"
    UNKNOWN_VERSION = "unknown_version"
    MALFORMED = "malformed"  # not what Kafka defines: a negative length, or an end in the middle of a whole frame


class Kind(Enum):
    """What a measure counts. The topic and partition of the first four are set, those of THROTTLE_MS are -1."""

    RECORDS = auto()  # records of a record set; absent where the kernel could not count them
    RECORD_BYTES = auto()  # size of a record set, always above 0
    UNCOUNTED_BYTES = auto()  # RECORD_BYTES once more, of a set whose records could not be counted
    OFFSET = auto()  # asked for (Fetch), committed (OffsetCommit, OffsetFetch) or given (Produce, ListOffsets)
    THROTTLE_MS = auto()


class Encoding(Enum):
    """How a measure stands in the data."""

    SIGNED = auto()  # big-endian two's complement
    COMPACT_LENGTH = auto()  # unsigned varint, minus 1 (KIP-482)


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of `width` bytes at `offset` of the data. `topic` is an index into the facts' topics."""

    kind: Kind
    topic: int
    partition: int
    offset: int
    width: int
    encoding: Encoding


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that a frame names. `topic_id` has 32 hexadecimal digits; name and id are None where not given."""

    name: str | None
    topic_id: str | None
    partitions: tuple[int, ...]  # indexes, as they stand in the frame
    errors: tuple[tuple[int, int], ...]  # (partition, code), code 0 left out; partition -1: the topic itself


@dataclass(frozen=True, slots=True)
class Facts:
    """The values that are equal for all frames of one shape; None where the frame does not have them."""

    response: bool
    api_key: int
    api_version: int
    status: Status
    stopped_at: str | None = None  # path of the field where a truncated or malformed frame ended
    client_id: str | None = None
    software_name: str | None = None
    software_version: str | None = None
    mechanism: str | None = None  # of SaslHandshake
    acks: int | None = None
    cluster_id: str | None = None
    groups: tuple[str, ...] = ()
    errors: tuple[tuple[int, int], ...] = ()  # (code, count) over all levels, code 0 left out
    topics: tuple[TopicFacts, ...] = ()
    has_records: bool = False  # a record set that is not empty: Fetch was answered with data

    @property
    def group(self) -> str | None:
        """The consumer group, if the frame names exactly one (OffsetFetch 8 and newer may ask for many)."""
        return self.groups[0] if len(self.groups) == 1 else None

    @property
    def topic_names(self) -> tuple[tuple[str, str], ...]:
        """(topic id, name) pairs to be learned: Metadata responses 10 and newer carry both (KIP-516)."""
        if not self.response:
            return ()
        return tuple((topic.topic_id, topic.name) for topic in self.topics if topic.topic_id and topic.name)


@dataclass(frozen=True, slots=True)
class Shape:
    """Facts and measures of every frame whose data fits.

    A frame fits if it has the same direction, API, version, copied_all and length, equal bytes under the mask (one mask
    byte per data byte: 0xFF decides, 0x00 does not, 0x80 decides by its top bit only), and if its RECORD_BYTES are
    above 0: no mask can say "not zero", and a record set of no bytes has another layout.
    """

    facts: Facts
    mask: bytes
    measures: tuple[Measure, ...]


def measure_values(shape: Shape, data: bytes) -> list[int]:
    """The values of the shape's measures in the data of one frame that fits it, in their order."""
    return [_value(measure, data) for measure in shape.measures]


def _value(measure: Measure, data: bytes) -> int:
    raw = data[measure.offset : measure.offset + measure.width]
    if measure.encoding is Encoding.SIGNED:
        return int.from_bytes(raw, "big", signed=True)
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(raw)) - 1
