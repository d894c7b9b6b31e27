"""Finds the records of Produce requests that a broker did not write, because its response has an error.

The response names the partitions, the request has their records. Requests are kept as columns. Only a response with an
error starts a search.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.connections.fetch_sessions import Topic
from kafka_probe.connections.frame_reader import Frames
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.error_codes import ERROR_CODES
from kafka_probe.protocol.facts import Facts, MeasureKind, Shape, text_bytes
from kafka_probe.protocol.measures import Integers

# Errors of records that the leader has written.
_WRITTEN = {ERROR_CODES[name] for name in ("REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")}
SUMMED = MeasureKind.RECORDS, MeasureKind.RECORD_BYTES
"""Measures of a request that are summed as refused."""
# Memory of the requests of one shape in a batch, of each of their columns, and of each request with its index.
_SHAPE_BYTES, _COLUMN_BYTES, _ROW_BYTES = 1024, 256, 96
# Shares of the limit: a larger request is not kept, and of one shape in a batch the newest. Others would be displaced.
OF_REQUEST, _OF_SHAPE = 1 / 16, 1 / 4
_STEPS_BACK = 8  # through requests with the same correlation id, which an honest client does not have

Keys = npt.NDArray[np.uint64]
Partition = tuple[Topic, int]
Sums = dict[Topic, Counter[MeasureKind]]
"""RECORDS and RECORD_BYTES by topic."""


@dataclass(slots=True)
class _ShapeRequests:
    """Requests of one shape in one batch: their keys, (n,), and RECORDS and RECORD_BYTES by partition, (n, columns)."""

    keys: Keys
    columns: dict[Partition, list[tuple[MeasureKind, int]]]
    values: Integers
    size_bytes: int
    used: npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Index:
    """The keys of all requests in ascending order, and part and row of each request.

    Equal keys are in the order of their requests.
    """

    keys: Keys
    part: npt.NDArray[np.intp]
    row: npt.NDArray[np.intp]


class Refusals:
    """The newest Produce requests, up to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.unmatched = 0  # responses with an error whose request is not known
        self.held_bytes = 0
        self._requests: deque[_ShapeRequests] = deque()
        self._index: _Index | None = None

    def see(self, frames: Frames) -> None:
        """Keep the frames if they are Produce requests with records that a response will follow."""
        facts = frames.shape.facts
        if facts.api_key != ApiKey.PRODUCE or facts.response or facts.acks == 0:
            return
        measures = [(n, measure) for n, measure in enumerate(frames.shape.measures) if measure.kind in SUMMED]
        one_bytes = _size(frames.shape, len(measures), 1)
        if not measures or one_bytes > self._limit_bytes * OF_REQUEST:
            return
        rows = min(len(frames.index), 1 + int((self._limit_bytes * _OF_SHAPE - one_bytes) // _row_bytes(len(measures))))
        size_bytes = _size(frames.shape, len(measures), rows)
        columns: dict[Partition, list[tuple[MeasureKind, int]]] = {}
        for column, (_, measure) in enumerate(measures):
            topic = facts.topics[measure.topic]
            key = (topic.name, topic.topic_id), measure.partition
            columns.setdefault(key, []).append((measure.kind, column))
        # Copies: the arrays of the whole batch would else be kept.
        values = frames.values[-rows:, [number for number, _ in measures]]
        keys = _keys(frames)[-rows:].copy()
        self._requests.append(_ShapeRequests(keys, columns, values, size_bytes, np.zeros(rows, np.bool_)))
        self._index = None
        self.held_bytes += size_bytes
        while self.held_bytes > self._limit_bytes:
            self.held_bytes -= self._requests.popleft().size_bytes

    def refused(self, frames: Frames) -> dict[int, Sums]:
        """Return RECORDS and RECORD_BYTES that the broker did not write, by connection; empty for other frames."""
        refused = _refused(frames.shape.facts)
        sums: dict[int, Sums] = {}
        if not refused:
            return sums
        index = self._sorted()
        keys = _keys(frames)
        last = (np.searchsorted(index.keys, keys, side="right") - 1).tolist()
        for conn, key, at in zip(frames.column("conn").tolist(), keys.tolist(), last, strict=True):
            found = self._take(index, key, at)
            if found is None:
                self.unmatched += 1
                continue
            requests, row = found
            for partition in refused & requests.columns.keys():
                of_topic = sums.setdefault(conn, {}).setdefault(partition[0], Counter())
                for kind, column in requests.columns[partition]:
                    of_topic[kind] += int(requests.values[row, column])
        return sums

    def _take(self, index: _Index, key: int, at: int) -> tuple[_ShapeRequests, int] | None:
        """Return the newest request with this key that no response has taken before, and its row; None without one."""
        for place in range(at, max(at - _STEPS_BACK, -1), -1):
            if int(index.keys[place]) != key:
                return None
            requests, row = self._requests[int(index.part[place])], int(index.row[place])
            if not requests.used[row]:
                requests.used[row] = True
                return requests, row
        return None

    def _sorted(self) -> _Index:
        """Return the index of the requests. It is made anew when requests were added since."""
        if self._index is None:
            lengths = [len(requests.keys) for requests in self._requests]
            keys = np.concatenate([np.empty(0, np.uint64), *(requests.keys for requests in self._requests)])
            part = np.repeat(np.arange(len(lengths)), lengths)
            row = np.concatenate([np.empty(0, np.intp), *map(np.arange, lengths)])
            order = np.argsort(keys, kind="stable")
            self._index = _Index(keys[order], part[order], row[order])
        return self._index


def _refused(facts: Facts) -> set[Partition]:
    """Return the partitions of a Produce response whose records the broker did not write."""
    if facts.api_key != ApiKey.PRODUCE or not facts.response:
        return set()
    return {
        ((topic.name, topic.topic_id), partition)
        for topic in facts.topics
        for partition, code in topic.errors
        if code not in _WRITTEN
    }


def _size(shape: Shape, columns: int, rows: int) -> int:
    """Return the memory of requests of a shape in bytes, rounded up."""
    names = sum(text_bytes(topic.name or "") for topic in shape.facts.topics)
    return _SHAPE_BYTES + names + _COLUMN_BYTES * columns + _row_bytes(columns) * rows


def _row_bytes(columns: int) -> int:
    return _ROW_BYTES + 8 * columns


def exchange_keys(conns: npt.NDArray[Any], correlation_ids: npt.NDArray[Any]) -> Keys:
    """Return a number for each connection, by the kernel's id, and correlation id: (n,), (n,) to (n,).

    Numbers of two connections are equal by chance, once in 2^31 pairs of connections.
    """
    keys: Keys = conns.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return keys ^ correlation_ids.astype(np.int64).astype(np.uint64)


def _keys(frames: Frames) -> Keys:
    return exchange_keys(frames.column("conn"), frames.column("correlation_id"))
