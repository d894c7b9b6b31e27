"""Frames as the kernel copied them: joins the samples of each, and decodes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.protocol.facts import Facts, Measure, Shape, measure_values
from kafka_probe.protocol.released_rules import copied_bodies
from kafka_probe.protocol.schemas import apis

RESPONSE, MORE, CUT = 1, 2, 4
"""Flags of a sample, as in the events."""


class CopiedSample(NamedTuple):
    """A sample with its origin: the columns of the table `frames` with these names; ts_us: `ts` as µs since epoch."""

    ts_us: int
    node: str | None
    agent_id: str | None
    conn_id: str | None
    flow_id: str | None
    copy_rules: str
    side: str | None
    ns: int
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

    copied_all: the kernel copied the whole frame except its record sets.
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
        first, bodies = self.first, copied_bodies(self.first.copy_rules)
        complete = self.whole and self.copied_all and (first.api_key, self.response) in (bodies or ())
        data = b"" if bodies is None else self.data
        return decode(self.response, first.api_key, first.api_version, data, copied_all=complete).shape()

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


class Joiner:
    """Joins samples to frames. The samples of each end of a connection and direction come in their order.

    A frame of which samples are missing has the data up to the first gap, or none if its first sample is missing.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[str | None, str | None, int], list[CopiedSample]] = {}

    def add(self, sample: CopiedSample) -> Iterator[CopiedFrame]:
        """Yield the frames that end with this sample or before it."""
        key = sample.agent_id, sample.conn_id, sample.flags & RESPONSE
        parts = self._begun.pop(key, [])
        if parts and not (sample.tcp_seq == parts[0].tcp_seq and sample.part == parts[-1].part + 1):
            yield _frame(parts, whole=False)
            parts = []
        parts.append(sample)
        if sample.flags & MORE:
            self._begun[key] = parts
        else:
            yield _frame(parts, whole=parts[0].part == 0)

    def rest(self) -> Iterator[CopiedFrame]:
        """Yield the frames whose last sample is missing."""
        for parts in self._begun.values():
            yield _frame(parts, whole=False)
        self._begun.clear()


def joined(samples: Iterable[CopiedSample]) -> Iterator[CopiedFrame]:
    """Yield the frames of samples."""
    joiner = Joiner()
    for sample in samples:
        yield from joiner.add(sample)
    yield from joiner.rest()


def _frame(parts: list[CopiedSample], *, whole: bool) -> CopiedFrame:
    data = b"".join(part.data for part in parts) if parts[0].part == 0 else b""
    return CopiedFrame(parts[0], data, whole, not parts[-1].flags & CUT)
