"""Batches of encoded events: the parts in which sinks keep, spool and deliver them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

BATCH_BYTES = 256 << 10
RECORD_BYTES = 64 << 10  # of events in a Kafka record: the pipeline bounds its micro-batches in records
EVENT_BYTES = 4 << 20  # maximum: twice the size of a flow of 4,096 topics with the longest names


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded events, each ended by a newline, with their number, their record key and the time of their queueing."""

    lines: bytes
    events: int
    key: str = ""
    since_s: float = field(default_factory=time.monotonic, compare=False)


def batches(lines: Iterable[bytes], limit_bytes: int = BATCH_BYTES, key: str = "") -> Iterator[Batch]:
    """Yield batches of at most `limit_bytes` of joined lines; a longer line is a batch by itself."""
    joined: list[bytes] = []
    size = 0
    for line in lines:
        if joined and size + len(line) > limit_bytes:
            yield Batch(b"".join(joined), len(joined), key)
            joined, size = [], 0
        joined.append(line)
        size += len(line)
    if joined:
        yield Batch(b"".join(joined), len(joined), key)
