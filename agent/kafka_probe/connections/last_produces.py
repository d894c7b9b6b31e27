"""Keeps the last Produce request with acks=0 of each connection: a broker that refuses one closes the connection."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka_probe.connections.frames_by_connection import FramesByConnection, Key
from kafka_probe.connections.refusals import OF_REQUEST, SUMMED, Sums
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Shape, shape_bytes
from kafka_probe.protocol.measures import Integers

_REQUEST_BYTES, _MEASURE_BYTES = 832, 8  # memory of a request without its shape, and of each measure


@dataclass(frozen=True, slots=True)
class LastProduce:
    """A Produce request.

    key: connection and shape; values: (measures,) of the shape; frame_bytes: its size; order: its time in ns and its
    place in the batch; closed_ns: time of the close that may have refused it, None before.
    """

    key: Key
    shape: Shape
    values: Integers
    frame_bytes: int
    order: list[int]
    closed_ns: int | None

    def sums(self) -> Sums:
        """Return the records of the request by topic."""
        sums: Sums = {}
        for measure, value in zip(self.shape.measures, self.values.tolist(), strict=True):
            if measure.kind in SUMMED:
                topic = self.shape.facts.topics[measure.topic]
                sums.setdefault((topic.name, topic.topic_id), Counter())[measure.kind] += value
        return sums

    @property
    def held_bytes(self) -> int:
        """Return its memory in bytes without its shape, which others may share."""
        return _REQUEST_BYTES + _MEASURE_BYTES * len(self.values)


class _RequestTable:
    """Requests in the order in which they were put, each by the kernel's id of its connection."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._by_conn: OrderedDict[int, LastProduce] = OrderedDict()
        self._of_shapes = Counter[int]()  # requests by the number of their shape

    def get(self, conn: int) -> LastProduce | None:
        return self._by_conn.get(conn)

    def put(self, request: LastProduce) -> None:
        conn, number = request.key
        self._by_conn[conn] = request
        self.held_bytes += request.held_bytes
        if not self._of_shapes[number]:  # the reader may drop its shapes
            self.held_bytes += shape_bytes(request.shape)
        self._of_shapes[number] += 1

    def take(self, conn: int) -> LastProduce | None:
        """Return and forget the request of a connection; None if there is none."""
        request = self._by_conn.pop(conn, None)
        if request:
            _, number = request.key
            self.held_bytes -= request.held_bytes
            self._of_shapes[number] -= 1
            if not self._of_shapes[number]:
                del self._of_shapes[number]
                self.held_bytes -= shape_bytes(request.shape)
        return request

    def drop_oldest(self) -> None:
        """Forget the request that was put first. There must be one."""
        self.take(next(iter(self._by_conn)))

    def oldest(self) -> LastProduce | None:
        """Return the request that was put first; None if there is none."""
        return next(iter(self._by_conn.values()), None)


class LastProduces:
    """The latest such request of each connection, up to `limit_bytes`.

    Those that a close may have refused are kept until the close is settled. They may use half of the limit, even if
    open connections send many. Connections are given by the kernel's ids.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._open, self._closed = _RequestTable(), _RequestTable()

    @property
    def held_bytes(self) -> int:
        """Return the memory of the requests in bytes."""
        return self._open.held_bytes + self._closed.held_bytes

    def see(self, grouped: FramesByConnection, closing: Mapping[int, int]) -> None:
        """Keep the last frame of each connection if the frames are Produce requests with acks=0.

        closing: connections whose close comes after the frames and may refuse the request, with its time.
        """
        frames = grouped.frames
        shape, facts = frames.shape, frames.shape.facts
        if facts.api_key != ApiKey.PRODUCE or facts.response or facts.acks != 0:
            return
        times, sizes = frames.column("ts_ns"), frames.column("frame_bytes")
        last = ((grouped.order[end - 1], key) for key, connection, _, end in grouped.runs if connection)
        for *order, row, key in sorted((int(times[row]), int(frames.index[row]), row, key) for row, key in last):
            conn, _ = key
            known = self._open.get(conn) or self._closed.get(conn)
            if known and known.order > order:  # its frames of another shape came later
                continue
            self.take(conn)
            closed_ns = closing.get(conn, known.closed_ns if known else None)
            request = LastProduce(key, shape, frames.values[row].copy(), int(sizes[row]), order, closed_ns)
            if request.held_bytes + shape_bytes(shape) <= self._limit_bytes * OF_REQUEST:
                self._put(request)

    def close(self, conn: int, closed_ns: int) -> None:
        """Keep the request of a connection until its close at this time, which may refuse it, is settled."""
        if request := self._open.take(conn):
            self._put(replace(request, closed_ns=closed_ns))

    def forget(self, conn: int) -> None:
        """Forget the request of a connection, unless its close is not settled."""
        self._open.take(conn)

    def take(self, conn: int) -> LastProduce | None:
        """Return and forget the request of a connection; None if it is not kept."""
        return self._open.take(conn) or self._closed.take(conn)

    def settle(self, until_ns: int) -> None:
        """Drop the requests of connections that were closed up to this time."""
        while (oldest := self._closed.oldest()) and oldest.closed_ns is not None and oldest.closed_ns <= until_ns:
            self._closed.drop_oldest()

    def _put(self, request: LastProduce) -> None:
        (self._open if request.closed_ns is None else self._closed).put(request)
        while self.held_bytes > self._limit_bytes:
            crowded = not self._open.held_bytes or self._closed.held_bytes > self._limit_bytes / 2
            (self._closed if crowded else self._open).drop_oldest()
