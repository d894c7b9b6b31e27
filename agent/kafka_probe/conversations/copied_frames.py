"""Frames as the kernel copied them: joins the samples of each, and decodes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from kafka_probe.protocol.archive_compatibility import rules_with_hash
from kafka_probe.protocol.decoder import Readers, decode
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.protocol.facts import Facts, Measure, Shape, measure_values
from kafka_probe.protocol.schemas import apis

RESPONSE, MORE, CUT, RESYNC = 1, 2, 4, 16
"""Flags of a sample, as in the events."""
NO_API = 255
"""The API key of a response whose request was not seen, as in the events."""
MOST_UNFINISHED_BYTES = 8 << 20
_PART_BYTES = 1024  # memory of a sample and of its place here, rounded up
_FrameKey = tuple[str | None, str | None, int]


class CopiedSample(NamedTuple):
    """A sample with its origin: the columns of the table `frames` with these names; ts_us: `ts` as µs since epoch."""

    ts_us: int
    node: str | None
    agent_id: str | None
    conn_id: str | None
    flow_id: str | None
    copy_rules: str
    side: str | None
    monotonic_ns: int
    tcp_seq: int
    frame_bytes: int
    correlation_id: int
    latency_us: int
    api_key: int
    api_version: int
    flags: int
    part: int
    data: bytes


@dataclass(frozen=True)
class CopiedFrame:
    """A frame: its first sample, the data of all its samples, and whether all of them are there.

    copied_all: the kernel copied the whole frame, except what its rules keep back.
    """

    first: CopiedSample
    data: bytes
    whole: bool
    copied_all: bool

    @property
    def response(self) -> bool:
        return bool(self.first.flags & RESPONSE)

    @property
    def api(self) -> str:
        """Return Kafka's name of the API, or its key."""
        api = apis().get(self.first.api_key)
        return api.name if api else f"API {self.first.api_key}"

    @cached_property
    def shape(self) -> Shape:
        """Return what the data contains, as far as it was copied; nothing if it was copied by unknown rules."""
        first, rules = self.first, rules_with_hash(self.first.copy_rules)
        complete = self.whole and self.copied_all and rules and (first.api_key, self.response) in rules.bodies
        return decode(
            *(self.response, first.api_key, first.api_version, self.data if rules else b""),
            copied_all=bool(complete),
            readers=_readers(first.copy_rules if rules else None),
        ).shape()

    @property
    def facts(self) -> Facts:
        return self.shape.facts

    @property
    def measures(self) -> Iterator[tuple[Measure, int]]:
        """Yield the numbers of the frame with their values."""
        return zip(self.shape.measures, measure_values(self.shape, self.data), strict=True)

    @property
    def errors(self) -> dict[str, int]:
        """Return how often each error is in it, by Kafka's names."""
        return {ERROR_NAMES.get(code, str(code)): count for code, count in self.facts.errors}


@cache
def _readers(rules: str | None) -> Readers:
    """Return the readers of frames that the rules with this hash copied; None: readers of empty data."""
    known = rules_with_hash(rules) if rules else None
    return Readers(hidden=known.kept_back.hidden) if known else Readers()


class Joiner:
    """Joins samples to frames. The samples of each end of a connection and direction come in their order.

    A frame of which samples are missing has the data up to the first gap, or none if its first sample is missing. So
    has the oldest unfinished frame as soon as unfinished frames have more than MOST_UNFINISHED_BYTES.
    """

    def __init__(self) -> None:
        self._begun: dict[_FrameKey, _Begun] = {}
        self._held_bytes = 0

    def add(self, sample: CopiedSample) -> Iterator[CopiedFrame]:
        """Yield the frames that end with this sample or before it."""
        ends = sample.agent_id, sample.conn_id
        if sample.flags & RESPONSE:
            # A sample of the request may be missing. It precedes its response.
            request = self._begun.get((*ends, 0))
            if request and request.first.correlation_id == sample.correlation_id:
                yield self._end((*ends, 0), whole=False)
        key = *ends, sample.flags & RESPONSE
        begun = self._begun.get(key)
        if begun and not (sample.tcp_seq == begun.first.tcp_seq and sample.part == begun.last_part + 1):
            yield self._end(key, whole=False)
            begun = None
        if begun is None:
            begun = self._begun[key] = _Begun(sample)
        begun.add(sample)
        self._held_bytes += _PART_BYTES + len(sample.data)
        if not sample.flags & MORE:
            yield self._end(key, whole=begun.first.part == 0)
        while self._held_bytes > MOST_UNFINISHED_BYTES:
            yield self._end(next(iter(self._begun)), whole=False)

    def rest(self) -> Iterator[CopiedFrame]:
        """Yield the frames whose last sample is missing."""
        while self._begun:
            yield self._end(next(iter(self._begun)), whole=False)

    def rest_of(self, agent_id: str | None, conn_id: str | None) -> Iterator[CopiedFrame]:
        """Yield those of one end of a connection."""
        for direction in (0, RESPONSE):
            if (agent_id, conn_id, direction) in self._begun:
                yield self._end((agent_id, conn_id, direction), whole=False)

    def _end(self, key: _FrameKey, *, whole: bool) -> CopiedFrame:
        begun = self._begun.pop(key)
        self._held_bytes -= sum(_PART_BYTES + len(part) for part in begun.data)
        data = b"".join(begun.data) if begun.first.part == 0 else b""
        return CopiedFrame(begun.first, data, whole, not begun.last_flags & CUT)


@dataclass(slots=True)
class _Begun:
    """A frame whose last sample has not come yet."""

    first: CopiedSample
    data: list[bytes] = field(default_factory=list)
    last_part: int = 0
    last_flags: int = 0

    def add(self, sample: CopiedSample) -> None:
        self.data.append(sample.data)
        self.last_part, self.last_flags = sample.part, sample.flags


def joined(samples: Iterable[CopiedSample]) -> Iterator[CopiedFrame]:
    """Yield the frames of samples."""
    joiner = Joiner()
    for sample in samples:
        yield from joiner.add(sample)
    yield from joiner.rest()
