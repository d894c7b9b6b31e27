"""Frames from the archive: joins the samples of each, and decodes what the kernel copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.protocol.facts import Facts, Measure, Shape, measure_values
from kafka_probe.protocol.schemas import apis

RESPONSE, MORE, CUT = 1, 2, 4
"""Flags of a sample, as in the events."""


class ArchivedSample(NamedTuple):
    """A row of the table `frames`: the columns of these names; ts_us: `ts` as µs since epoch."""

    ts_us: int
    node: str | None
    agent_id: str | None
    conn_id: str | None
    flow_id: str | None
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
class ArchivedFrame:
    """A frame: its first sample, the data of all its samples, and whether all of them are there.

    copied_all: the kernel copied the whole frame except its record sets.
    """

    first: ArchivedSample
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
        """Return what the data contains, as far as it was copied."""
        first = self.first
        complete = self.whole and self.copied_all
        return decode(self.response, first.api_key, first.api_version, self.data, copied_all=complete).shape()

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


def joined(samples: Iterable[ArchivedSample]) -> Iterator[ArchivedFrame]:
    """Yield the frames of samples, which are in order for each end and direction.

    A frame of which samples are missing has the data up to the first gap, or none if its first sample is missing.
    """
    begun: dict[tuple[str | None, str | None, int], list[ArchivedSample]] = {}
    for sample in samples:
        key = sample.agent_id, sample.conn_id, sample.flags & RESPONSE
        parts = begun.pop(key, [])
        if parts and not (sample.tcp_seq == parts[0].tcp_seq and sample.part == parts[-1].part + 1):
            yield _frame(parts, whole=False)
            parts = []
        parts.append(sample)
        if sample.flags & MORE:
            begun[key] = parts
        else:
            yield _frame(parts, whole=parts[0].part == 0)
    for parts in begun.values():
        yield _frame(parts, whole=False)


def _frame(parts: list[ArchivedSample], *, whole: bool) -> ArchivedFrame:
    data = b"".join(part.data for part in parts) if parts[0].part == 0 else b""
    return ArchivedFrame(parts[0], data, whole, not parts[-1].flags & CUT)
