"""Keeps the newest exchanges that contain offsets, one for each connection and shapes of request and response.

Of a batch, only the last request of each connection and shape is paired with its response, and of commits the last few,
so that frames cost a share of a few array operations. A request whose response is not in its batch waits for a later
one. Nothing is evaluated here, see offset_facts.py.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from kafka_probe.connections.frames_by_connection import FramesByConnection, Key
from kafka_probe.connections.offset_facts import PAIRED, Exchanged, OneFrame, gives_ends
from kafka_probe.connections.refusals import exchange_keys
from kafka_probe.peer_limits import Shares
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import shape_bytes
from kafka_probe.protocol.measures import Integers

OFFSET_LIMIT = "offset_limit"
_COMMITS = 8  # most commits of each connection and shape in a batch that are paired: the last may be refused
_RESPONSES = 16  # first and last responses of each connection and shape in a batch that are compared with requests
_WAIT_NS = 60_000_000_000  # a response that comes later is not paired

IsCounted = Callable[[Key], bool]
"""Returns True if the counts of the interval hold a shape, so that it takes no memory here."""


class OffsetExchanges:
    """The newest exchanges since `take`, in two thirds of `limit_bytes`, and in the rest the requests that wait.

    losses: counts requests that do not fit as `offset_limit`.
    """

    def __init__(self, limit_bytes: int, losses: Counter[str]) -> None:
        self._newest_limit_bytes = limit_bytes * 2 // 3
        self._waiting_limit_bytes = limit_bytes - self._newest_limit_bytes
        self._losses = losses
        self._newest: dict[tuple[Key, int | None], Exchanged] = {}  # by the shapes of both
        self._newest_bytes = 0
        # By connection and by shape. The connections that wait longest come first.
        self._waiting: OrderedDict[int, dict[int, OneFrame]] = OrderedDict()
        self._waiting_bytes = 0
        self._freed_bytes = 0
        self._shares = Shares(self._waiting_limit_bytes)

    @property
    def held_bytes(self) -> int:
        """Return the memory of exchanges and requests in bytes."""
        return self._newest_bytes + self._waiting_bytes

    @property
    def full(self) -> bool:
        """Return True if the caller should call `take` now."""
        return self._newest_bytes > self._newest_limit_bytes

    def see(self, batch: Sequence[FramesByConnection], counts: IsCounted) -> None:
        """Keep the newest exchanges of a batch."""
        requests: list[OneFrame] = []
        responses: list[FramesByConnection] = []
        waiting = sum(map(len, self._waiting.values()))
        for grouped in batch:
            frames = grouped.frames
            facts = frames.shape.facts
            if facts.api_key == ApiKey.FETCH and gives_ends(frames.shape):
                for response in _last(grouped):
                    self._keep(Exchanged(None, response), counts)
            elif facts.api_key in PAIRED and facts.response:
                responses.append(grouped)
            elif facts.api_key in PAIRED and not (facts.api_key == ApiKey.PRODUCE and facts.acks == 0):
                requests += _last(grouped, _COMMITS if facts.api_key == ApiKey.OFFSET_COMMIT else 1)
        if not (requests or (responses and self._waiting)):
            return
        # Those that wait come first: if both are answered, the newer exchange is kept.
        requests[:0] = (request for of_connection in self._waiting.values() for request in of_connection.values())
        found = _responses(requests, responses)
        for at, request in enumerate(requests):
            if answered := found.get(at):
                self._keep(Exchanged(request, answered), counts)
                if at < waiting:
                    self._drop(request.key)
            elif at >= waiting:
                self._wait(request)

    def take(self, now_ns: int | None = None) -> list[Exchanged]:
        """Return the newest exchanges since the last call; forget requests that have waited too long by `now_ns`."""
        newest, self._newest, self._newest_bytes = self._newest, {}, 0
        if now_ns is not None:
            for of_connection in [*self._waiting.values()]:
                for request in [*of_connection.values()]:
                    if now_ns - request.ts_ns > _WAIT_NS:
                        self._drop(request.key)
        return list(newest.values())

    def forget(self, conn: int) -> None:
        """Drop the requests of a connection that has ended."""
        for request in [*self._waiting.get(conn, {}).values()]:
            self._drop(request.key)

    def _keep(self, exchanged: Exchanged, counts: IsCounted) -> None:
        request, response = exchanged
        # A response with an error has another shape: it does not replace one without.
        key = response.key, request.key[1] if request else None
        known = self._newest.get(key)
        if known is None:
            self._newest_bytes += sum(
                frame.held_bytes + (0 if counts(frame.key) else shape_bytes(frame.shape))
                for frame in exchanged
                if frame
            )
        elif known.response.ts_ns > response.ts_ns:
            return
        self._newest[key] = exchanged

    def _wait(self, request: OneFrame) -> None:
        conn, number = request.key
        if number in self._waiting.get(conn, {}):
            return  # else one of a client that waits for responses longer than a batch takes would never be paired
        size, peer = _waiting_bytes(request), request.connection.sharing_peer
        fits = size <= self._waiting_limit_bytes
        if not (fits and self._shares.take(peer, size, self._waiting_bytes, self._freed_bytes)):
            self._losses[OFFSET_LIMIT] += 1
            return
        self._waiting.setdefault(conn, {})[number] = request
        self._waiting_bytes += size
        while self._waiting_bytes > self._waiting_limit_bytes:
            self._losses[OFFSET_LIMIT] += 1
            longest = next(iter(self._waiting.values()))
            self._drop(next(iter(longest.values())).key)

    def _drop(self, key: Key) -> None:
        conn, number = key
        size = _waiting_bytes(self._waiting[conn].pop(number))
        if not self._waiting[conn]:
            del self._waiting[conn]
        self._waiting_bytes -= size
        self._freed_bytes += size


def _waiting_bytes(request: OneFrame) -> int:
    """Return the memory of a request with its shape, which the reader and the counts may drop before."""
    return request.held_bytes + shape_bytes(request.shape)


def _last(grouped: FramesByConnection, most: int = 1) -> list[OneFrame]:
    """Return the last frame, or frames, of each known connection, without kafka-probe's own connections.

    Each has a copy of its values, so that it does not keep those of others.
    """
    runs = [
        (key, connection, place)
        for key, connection, start, end in grouped.runs
        if connection
        for place in range(max(start, end - most), end)
    ]
    if not runs:
        return []
    frames = grouped.frames
    rows = grouped.order[[place for _, _, place in runs]]
    index = frames.index[rows]
    ids, times = (frames.batch[name][index].tolist() for name in ("correlation_id", "ts_ns"))
    shape = frames.shape
    last = zip(runs, frames.values[rows], ids, times, strict=True)
    return [
        OneFrame(key, connection, shape, values.copy(), correlation_id, ts_ns)
        for (key, connection, _), values, correlation_id, ts_ns in last
        if not connection.internal
    ]


def _first_and_last(grouped: FramesByConnection) -> Integers:
    """Return the indices of the first and last responses of each connection.

    Those to requests that waited are among the first, those to the last requests of a batch among the last.
    """
    order, parts = grouped.order, list[Integers]()
    for _, _, start, end in grouped.runs:
        if end - start <= 2 * _RESPONSES:
            parts.append(order[start:end])
        else:
            parts += order[start : start + _RESPONSES], order[end - _RESPONSES : end]
    return np.concatenate(parts)


def _responses(requests: list[OneFrame], responses: list[FramesByConnection]) -> dict[int, OneFrame]:
    """Return the response of each request that has one among these, by the request's place in the list."""
    conns, ids = [request.key[0] for request in requests], [request.correlation_id for request in requests]
    keys = exchange_keys(np.array(conns, np.uint64), np.array(ids))
    order = keys.argsort(kind="stable")
    keys = keys[order]
    found: dict[int, OneFrame] = {}
    for grouped in responses:
        frames, rows = grouped.frames, _first_and_last(grouped)
        index = frames.index[rows]
        answered = exchange_keys(frames.batch["conn"][index], frames.batch["correlation_id"][index])
        places = keys.searchsorted(answered, side="right") - 1  # of equal keys, that of the newest request
        known = keys[places] == answered
        if not known.any():
            continue
        rows, index, places = rows[known], index[known], places[known]
        columns = (frames.batch[name][index].tolist() for name in ("conn", "correlation_id", "ts_ns"))
        shape, api_key = frames.shape, frames.shape.facts.api_key
        for at, values, conn, correlation_id, ts_ns in zip(
            order[places].tolist(), frames.values[rows], *columns, strict=True
        ):
            request = requests[at]
            # Different connections may have the same key, and a client may use a correlation id again.
            same = (conn, correlation_id, api_key) == (conns[at], ids[at], request.shape.facts.api_key)
            if same and ts_ns >= request.ts_ns:
                key = conn, frames.number
                found[at] = OneFrame(key, request.connection, shape, values.copy(), correlation_id, ts_ns)
    return found
