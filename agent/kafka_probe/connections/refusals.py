"""Finds the records of Produce requests that a broker did not write, because its response has an error.

The response names the partitions, the request has their records. Few responses have an error, so requests are kept as
columns, and searched only for those.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kafka_probe.connections.fetch_sessions import Topic
from kafka_probe.connections.frames import Frames
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import MeasureKind, Shape, shape_bytes
from kafka_probe.protocol.measures import Integers

LOSSES = {
    "refusal_unmatched": "Produce responses with an error whose request is not known: its records count as written",
}
# Errors of records that the leader has written: REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND and, for an
# earlier request, DUPLICATE_SEQUENCE_NUMBER (org.apache.kafka.common.protocol.Errors).
_WRITTEN = frozenset({7, 20, 46})
_SUMMED = MeasureKind.RECORDS, MeasureKind.RECORD_BYTES

Keys = npt.NDArray[np.uint64]
Sums = dict[Topic, Counter[MeasureKind]]
"""RECORDS and RECORD_BYTES by topic."""


@dataclass(frozen=True, slots=True)
class _Requests:
    """Requests of one shape: the key of each, (n,), and its measures, (n, measures of the shape)."""

    shape: Shape
    keys: Keys
    values: Integers

    @property
    def size_bytes(self) -> int:
        return shape_bytes(self.shape) + self.keys.nbytes + self.values.nbytes

    def columns(self, partitions: set[tuple[Topic, int]]) -> Iterator[tuple[Topic, MeasureKind, int]]:
        """Yield topic, kind and column of the measures of these partitions."""
        topics = [(topic.name, topic.topic_id) for topic in self.shape.facts.topics]
        for column, measure in enumerate(self.shape.measures):
            if measure.kind in _SUMMED and (topics[measure.topic], measure.partition) in partitions:
                yield topics[measure.topic], measure.kind, column


class Refusals:
    """The newest Produce requests, up to `limit_bytes`. `losses` counts by the names of LOSSES."""

    def __init__(self, limit_bytes: int, losses: Counter[str]) -> None:
        self._limit_bytes = limit_bytes
        self._requests: deque[_Requests] = deque()
        self._held_bytes = 0
        self.losses = losses

    def see(self, frames: Frames) -> None:
        """Keep the frames if they are Produce requests that a response will follow."""
        facts = frames.shape.facts
        if facts.api_key != ApiKey.PRODUCE or facts.response or facts.acks == 0:
            return
        new = _Requests(frames.shape, _keys(frames), frames.values)
        self._requests.append(new)
        self._held_bytes += new.size_bytes
        while self._held_bytes > self._limit_bytes:
            self._held_bytes -= self._requests.popleft().size_bytes

    def refused(self, frames: Frames) -> dict[int, Sums]:
        """Return the sums of what Produce responses refused, by connection; nothing for other frames."""
        facts = frames.shape.facts
        if facts.api_key != ApiKey.PRODUCE or not facts.response:
            return {}
        refused = {
            ((topic.name, topic.topic_id), partition)
            for topic in facts.topics
            for partition, code in topic.errors
            if code not in _WRITTEN
        }
        return self._sums(frames, refused) if refused else {}

    def _sums(self, frames: Frames, refused: set[tuple[Topic, int]]) -> dict[int, Sums]:
        conns, keys = frames.column("conn").tolist(), _keys(frames)
        unmatched = np.ones(len(keys), np.bool_)
        sums: dict[int, Sums] = {}
        for requests in reversed(self._requests):
            _, rows, responses = np.intersect1d(requests.keys, keys, return_indices=True)
            unmatched[responses] = False
            for topic, kind, column in requests.columns(refused) if len(rows) else ():
                values = requests.values[rows, column].tolist()
                for response, value in zip(responses.tolist(), values, strict=True):
                    sums.setdefault(conns[response], {}).setdefault(topic, Counter())[kind] += value
            if not unmatched.any():
                break
        self.losses["refusal_unmatched"] += int(unmatched.sum())
        return sums


def _keys(frames: Frames) -> Keys:
    """Return a number for each connection and correlation id, (n,).

    Two connections share numbers by chance only, once in 2^31 pairs of connections.
    """
    keys: Keys = frames.column("conn").astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return keys ^ frames.column("correlation_id").astype(np.int64).astype(np.uint64)
