"""Keeps the last Produce request with acks=0 of each connection: a broker that refuses one closes the connection."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from kafka_probe.connections.grouping import FramesByConnection, Key
from kafka_probe.connections.refusals import OF_REQUEST, SUMMED, Sums
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Shape, shape_bytes
from kafka_probe.protocol.measures import Integers

_REQUEST_BYTES, _MEASURE_BYTES = 768, 8  # memory of a request without its shape, and of each measure


@dataclass(frozen=True, slots=True)
class LastProduce:
    """A Produce request.

    key: connection and shape; values: (measures,) of the shape; frame_bytes: its size; order: its time in ns and its
    place in the batch.
    """

    key: Key
    shape: Shape
    values: Integers
    frame_bytes: int
    order: tuple[int, int]

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


class LastProduces:
    """The latest such request of each connection, up to `limit_bytes`.

    Requests of closed connections are kept until the close is settled. They may use half of the limit, even if open
    connections send many.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        # By the kernel's id of the connection.
        self._open: OrderedDict[int, LastProduce] = OrderedDict()
        self._closed: OrderedDict[int, LastProduce] = OrderedDict()
        self._closed_bytes = 0  # with a shape for each
        self._of_shapes = Counter[int]()  # requests by the number of their shape

    def see(self, grouped: FramesByConnection) -> None:
        """Keep the last frame of each connection if the frames are Produce requests with acks=0."""
        frames = grouped.frames
        shape, facts = frames.shape, frames.shape.facts
        if facts.api_key != ApiKey.PRODUCE or facts.response or facts.acks != 0:
            return
        times, sizes = frames.column("ts_ns"), frames.column("frame_bytes")
        for key, connection, _, end in grouped.runs:
            row = grouped.order[end - 1]
            order = int(times[row]), int(frames.index[row])
            known = self._open.get(key[0])
            if connection is None or (known and known.order > order):  # its frames of another shape came later
                continue
            self.take(key[0])
            request = LastProduce(key, shape, frames.values[row].copy(), int(sizes[row]), order)
            if request.held_bytes + shape_bytes(shape) <= self._limit_bytes * OF_REQUEST:
                self._keep(request)
        while self.held_bytes > self._limit_bytes:
            crowded = not self._open or self._closed_bytes > self._limit_bytes / 2
            self.take(next(iter(self._closed if crowded else self._open)))

    def close(self, conn: int) -> None:
        """Keep the request of a connection that was closed, by the kernel's id, if it has one."""
        if request := self._open.pop(conn, None):
            self._closed[conn] = request
            self._closed_bytes += request.held_bytes + shape_bytes(request.shape)

    def take(self, conn: int) -> LastProduce | None:
        """Return and forget the request of a connection, by the kernel's id; None if it is not kept."""
        request = self._open.pop(conn, None)
        if not request and (request := self._closed.pop(conn, None)):
            self._closed_bytes -= request.held_bytes + shape_bytes(request.shape)
        if request:
            _, number = request.key
            self.held_bytes -= request.held_bytes
            self._of_shapes[number] -= 1
            if not self._of_shapes[number]:
                del self._of_shapes[number]
                self.held_bytes -= shape_bytes(request.shape)
        return request

    def _keep(self, request: LastProduce) -> None:
        conn, number = request.key
        self._open[conn] = request
        self.held_bytes += request.held_bytes
        if not self._of_shapes[number]:  # the reader may drop its shapes
            self.held_bytes += shape_bytes(request.shape)
        self._of_shapes[number] += 1
