"""Counts frames per interval by connection and shape; at the end of an interval, it hands over the counts.

The facts of a shape are read once per interval and connection, so that a frame costs only its share of a few array
operations. This module never decodes frames. It changes nothing but its counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.fetch_sessions import FETCHES
from kafka_probe.connections.frames_by_connection import FramesByConnection, Key
from kafka_probe.connections.last_produces import LastProduce
from kafka_probe.connections.refusals import Sums
from kafka_probe.events import BUCKETS_PER_DOUBLING
from kafka_probe.flow_sums import LOSSES, Count, IntervalCounts, OtherSums
from kafka_probe.memory import BORROWED_BYTES, DEFAULT, Bounds
from kafka_probe.peer_limits import Shares
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Shape, shape_bytes

_COUNT_BYTES = 800  # memory of a count without its shape
_MEASURE_BYTES = 8  # memory of each measure of the shape
_BUCKET_BYTES = 128  # memory of each latency bucket
_ASKED_TOPIC_BYTES, _ASKED_PARTITION_BYTES = 800, 80  # memory per topic and partition named to a session
_SESSION_SHAPE_BYTES = 256  # memory of the link between a shape of Fetch and its session
_REFUSED_TOPIC_BYTES = 800  # memory per topic of which records were refused
_COUNTED_AS_ARRAY = 128  # from so many frames on, array operations count latencies faster than Python does


class Flows:
    """Counts the frames of the running interval, by connection and shape; beyond the memory budget by side and API.

    free: connections that are not open but have memory, which the counts of the first interval may use.
    """

    def __init__(self, free: int, bounds: Bounds = DEFAULT) -> None:
        self.losses = Counter(dict.fromkeys(LOSSES, 0))
        self._limit_bytes = bounds.counts_bytes // 2  # the other half belongs to the interval being reported
        self._begin(free)

    def counts(self, key: Key) -> bool:
        """Return True if the shape has a count of its own on the connection in this interval."""
        return key in self._counts

    def refuse(self, connection: Connection, request: LastProduce) -> None:
        """Count a request as not written by the broker. It was counted as written when it was seen."""
        sums = request.sums()
        count = self._count(connection, request.key, request.shape, {})
        if count.kept and not self._take(connection, _REFUSED_TOPIC_BYTES * len(sums)):
            count = Count.of(connection, request.shape)
        count.add_refused(sums)
        if not count.kept:
            self._other.add(count, refusals=1)

    def add(self, grouped: FramesByConnection, refused: Mapping[int, Sums]) -> None:
        """Count frames of one shape on any number of connections.

        refused: what the frames say that brokers did not write, by the kernel's id of the connection.
        """
        frames, shape, order, starts = grouped.frames, grouped.frames.shape, grouped.order, grouped.starts
        sizes = np.add.reduceat(frames.column("frame_bytes")[order].astype(np.int64), starts).tolist()
        values = np.add.reduceat(frames.values.take(order, axis=0), starts) if shape.measures else frames.values[starts]
        buckets = _buckets(frames.column("latency_us")[order]) if shape.facts.response else None
        no_latency: dict[int, int] = {}
        for i, (key, connection, start, end) in enumerate(grouped.runs):
            if connection is None:
                continue
            latency = no_latency if buckets is None else _histogram(buckets[start:end])
            count = self._count(connection, key, shape, latency)
            count.frames += end - start
            count.bytes += sizes[i]
            count.values += values[i]
            count.latency.update(latency)
            count.add_refused(refused.get(key[0], {}))
            if not count.kept:
                self._other.add(count)

    def finish(self, free: int) -> IntervalCounts:
        """Return the counts of the interval, and begin a new interval. free: as at construction, for the new one."""
        counts = IntervalCounts(self._counts, self._other)
        self._begin(free)
        return counts

    def _begin(self, free: int) -> None:
        """Begin an interval without counts."""
        self._counts: dict[Key, Count] = {}
        self._other = OtherSums(self.losses)
        self._shapes: set[int] = set()  # numbers of the shapes of the counts
        self._held_bytes = 0
        self._budget_bytes = self._limit_bytes + max(free, 0) * BORROWED_BYTES
        self._shares = Shares(self._budget_bytes)

    def _count(self, connection: Connection, key: Key, shape: Shape, latency: Mapping[int, int]) -> Count:
        """Return the count of a shape on a connection. A new one is not kept if the budget is exhausted."""
        known = self._counts.get(key)
        count = known or Count.of(connection, shape)
        needed = _BUCKET_BYTES * len(latency.keys() - count.latency.keys())
        if known is None:
            needed += _count_bytes(shape) + (0 if key[1] in self._shapes else shape_bytes(shape))
        if needed and not self._take(connection, needed):
            return Count.of(connection, shape)
        if known is None:
            count.kept = True
            self._shapes.add(key[1])
            self._counts[key] = count
        return count

    def _take(self, connection: Connection, needed: int) -> bool:
        """Take bytes for a count from the connection's peer; return False if they do not fit."""
        held = self._held_bytes
        fits = held + needed <= self._budget_bytes and self._shares.take(connection.sharing_peer, needed, held)
        self._held_bytes += needed * fits
        return fits


def _buckets(latency_us: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Return the bucket of each latency, as events.bucket_of does."""
    doublings = np.log2(np.maximum(latency_us, 1) / 1e6)
    buckets: npt.NDArray[np.int64] = np.ceil(doublings * BUCKETS_PER_DOUBLING).astype(np.int64) - 1
    return buckets


def _histogram(buckets: npt.NDArray[np.int64]) -> Mapping[int, int]:
    """Return how often each bucket occurs; buckets: at least one."""
    if len(buckets) < _COUNTED_AS_ARRAY:
        return Counter(buckets.tolist())
    least = buckets.min()
    times = np.bincount(buckets - least)
    present = np.flatnonzero(times)
    return dict(zip((present + least).tolist(), times[present].tolist(), strict=True))


def _count_bytes(shape: Shape) -> int:
    """Return the memory of a count in bytes, without its shape and its latency buckets."""
    facts = shape.facts
    asked = (*facts.topics, *facts.forgotten) if facts.api_key in FETCHES else ()
    partitions = sum(len(topic.partitions) for topic in asked)
    of_session = _ASKED_TOPIC_BYTES * len(asked) + _ASKED_PARTITION_BYTES * partitions
    of_session += _SESSION_SHAPE_BYTES * (facts.api_key in FETCHES)
    refused = facts.topics if facts.response and facts.api_key == ApiKey.PRODUCE else ()
    of_refusals = _REFUSED_TOPIC_BYTES * sum(bool(topic.errors) for topic in refused)
    return _COUNT_BYTES + _MEASURE_BYTES * len(shape.measures) + of_session + of_refusals
