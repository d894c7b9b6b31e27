"""Keeps the last Produce request with acks=0 of each connection: a broker that refuses one closes the connection."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from kafka_probe.connections.grouping import FramesByConnection, Key
from kafka_probe.connections.refusals import SUMMED, Sums
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Shape, shape_bytes
from kafka_probe.protocol.measures import Integers

_REQUEST_BYTES, _MEASURE_BYTES = 400, 8  # memory of a request without its shape, and of each measure


@dataclass(frozen=True, slots=True)
class LastProduce:
    """A Produce request. key: connection and shape; values: (measures,) of the shape; frame_bytes: its size."""

    key: Key
    shape: Shape
    values: Integers
    frame_bytes: int

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
        """Return its memory in bytes, with its shape: the reader may have dropped that."""
        return _REQUEST_BYTES + _MEASURE_BYTES * len(self.values) + shape_bytes(self.shape)


class LastProduces:
    """The requests of the connections that sent one last, up to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        self._requests: OrderedDict[int, LastProduce] = OrderedDict()  # by the kernel's id of the connection

    def see(self, grouped: FramesByConnection) -> None:
        """Keep the last frame of each connection if the frames are Produce requests with acks=0."""
        frames = grouped.frames
        facts = frames.shape.facts
        if facts.api_key != ApiKey.PRODUCE or facts.response or facts.acks != 0:
            return
        sizes = frames.column("frame_bytes")
        for key, connection, _, end in grouped.runs:
            self.take(key[0])
            if connection:
                row = grouped.order[end - 1]
                request = LastProduce(key, frames.shape, frames.values[row].copy(), int(sizes[row]))
                self._requests[key[0]] = request
                self.held_bytes += request.held_bytes
        while self.held_bytes > self._limit_bytes:
            self.take(next(iter(self._requests)))

    def take(self, conn: int) -> LastProduce | None:
        """Return and forget the request of a connection, by the kernel's id; None if it is not kept."""
        request = self._requests.pop(conn, None)
        if request:
            self.held_bytes -= request.held_bytes
        return request
