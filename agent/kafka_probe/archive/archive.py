"""The archive: chooses the frames to keep, and makes `frames` events of them.

The frames that the settings ask for are sent at once. Those of a connection that ended abnormally come from the
recorder, once its close is settled. All are copies of what the kernel copied. This module never decodes frames.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt

from kafka_probe.archive import recorder
from kafka_probe.archive.recorder import KeyArray, Recorder, exchange_keys
from kafka_probe.capture.sample import DATA_BYTES, NO_API, Flag, Samples
from kafka_probe.config import DaemonConfig
from kafka_probe.connections.close_reason import JUST_NS, read_close
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.frame_reader import Frames
from kafka_probe.connections.pending_closes import PendingClose
from kafka_probe.connections.topic_names import TopicNames
from kafka_probe.connections.tracker import Tracker
from kafka_probe.events import CloseFacts, FrameSamples, FramesEvent, WallClock, owner_names
from kafka_probe.patterns import ConnectionNames, matches, matches_connection
from kafka_probe.protocol.kernel_allow_list import rules_hash
from kafka_probe.protocol.schemas import apis
from kafka_probe.setting_types import ArchiveFilter, ExchangeSelection

LOSSES = {
    **recorder.LOSSES,
    "archive_rate": "samples of frames for the archive beyond `--archive-bytes-per-s`; the "
    "last half of the burst is kept for those of connections that ended abnormally",
}
_EVENT_SAMPLES = 512
_SAMPLE_BYTES = 100  # of a sample in JSON besides its data
_BURST_S = 3  # seconds of unused rate that the bucket keeps; the topic's queue cannot hold more
_LEAST_SAMPLES, _MOST_SAMPLES = 4, 128  # of each direction of a connection that ended abnormally
_SAMPLES_OF_ALL = 1 << 14  # of all connections that ended together
_SAMPLES_AT_ONCE = 1 << 12  # looked up in the recorder at a time
_ASKED = 1 << 14  # most exchanges whose response is still awaited, because their request names a topic of the filter
_COLUMNS = tuple(name for name in FrameSamples.__annotations__ if name not in ("end", "monotonic_ns", "data"))
_RESPONSE = int(Flag.RESPONSE)

Mask = npt.NDArray[np.bool_]


class Archive:
    """Sends frames as events, within the rate. `losses` counts by the names of LOSSES."""

    def __init__(self, config: DaemonConfig, tracker: Tracker, names: TopicNames) -> None:
        self._which = config.archive
        self._filter = config.archive_filter
        self._tracker = tracker
        self._names = names
        self._rate = _TokenBucket(config.archive_bytes_per_s)
        # An event takes at most a quarter of the bucket: a larger one than may be taken would always be dropped.
        most_samples = int(config.archive_bytes_per_s * _BURST_S / 4 / (DATA_BYTES * 4 / 3 + _SAMPLE_BYTES))
        self._event_samples = min(_EVENT_SAMPLES, most_samples)
        self._has_recorder = config.recorder_bytes > 0
        self._recorder = Recorder(config.recorder_bytes, tracker.awaits_close)
        self._asked: OrderedDict[int, None] = OrderedDict()
        self._rate_losses = 0
        self._dropped_ns = 0  # time of the newest sample that was dropped

    @property
    def _by_sample(self) -> bool:
        """Return True if each sample is chosen by what it has itself; others are chosen by their exchange."""
        return self._which.which in ("all", "one_in") and not self._filter.topic

    @property
    def losses(self) -> dict[str, int]:
        """Return the losses since the start."""
        return {**self._recorder.losses, "archive_rate": self._rate_losses}

    def choose(self, wanted: ArchiveFilter | None) -> None:
        """Send all frames that meet these conditions from now on, or none."""
        self._which = ExchangeSelection("all" if wanted else "off")
        self._filter = wanted or ArchiveFilter()
        self.__dict__.pop("_is_of_api", None)

    def add(self, samples: Samples) -> None:
        """Keep samples as they were read. They must not change any more."""
        if self._has_recorder:
            self._recorder.add(samples)

    def select(self, samples: Samples, batch: Sequence[Frames]) -> Iterator[FramesEvent]:
        """Yield events with the frames that the settings ask for.

        samples: FRAME samples; batch: the frames that they complete.
        """
        if self._by_sample:
            chosen = samples[self._of_samples(samples, self._known(samples["conn"]))]
        elif self._which.which == "off":
            return
        else:
            # Requests first: a response may be chosen by what its request names.
            keys = [self._exchanges(frames) for frames in sorted(batch, key=lambda one: one.shape.facts.response)]
            chosen = self._recorder.exchanges(np.concatenate([np.empty(0, np.uint64), *keys]))
        yield from self._events(chosen, self._known(chosen["conn"]), spare=0.5)

    def note_closes(self, settled: Sequence[PendingClose]) -> Iterator[FramesEvent]:
        """Yield events with the newest frames of the connections that ended abnormally, and forget all of them."""
        if not self._has_recorder:
            return
        ended_abnormally = []
        for closed in settled:
            facts = None if closed.connection.internal else _abnormal(closed)
            if facts:
                self._tracker.note_frames(closed, 0, evicted=False)
            if facts and facts["last_request_bytes"] is not None:  # the recorder may have frames of it
                ended_abnormally.append(closed)
        most = min(max(_SAMPLES_OF_ALL // max(len(ended_abnormally), 1), _LEAST_SAMPLES), _MOST_SAMPLES)
        at_once = _SAMPLES_AT_ONCE // most
        for start in range(0, len(ended_abnormally), at_once):
            closes = {closed.connection.identity.conn: closed for closed in ended_abnormally[start : start + at_once]}
            found = self._recorder.frames_of(closes, most)
            firsts = found[found["part"] == 0]
            counts = Counter(firsts["conn"].tolist())
            asked = {*firsts["conn"][firsts["flags"] & _RESPONSE == 0].tolist()}
            for conn, closed in closes.items():
                self._tracker.note_frames(closed, counts[conn], evicted=conn not in asked)
            connections = {conn: closed.connection for conn, closed in closes.items()}
            if self._by_sample:  # those that were dropped before are sent again, the others were sent
                found = found[(found["ts_ns"] <= self._dropped_ns) | ~self._of_samples(found, connections)]
            yield from self._events(found, connections, spare=0)
        for closed in settled:
            self.forget(closed.connection.identity.conn)

    def forget(self, conn: int) -> None:
        """Drop the last frames of a connection of which no close follows."""
        self._recorder.forget(conn)

    def _of_samples(self, samples: Samples, known: Mapping[int, Connection]) -> Mask:
        """Return which samples the settings choose, by what each sample has itself, (n,)."""
        chosen: Mask = np.ones(len(samples), np.bool_)
        if self._which.which == "one_in":
            chosen &= exchange_keys(samples) % np.uint64(self._which.one_in) == 0
        if self._filter.api:
            chosen &= self._is_of_api[samples["api_key"]]
        distinct, index = np.unique(samples["conn"], return_inverse=True)
        wanted = [conn in known and self._matches_connection(known[conn]) for conn in distinct.tolist()]
        return chosen & np.array(wanted, np.bool_)[index]

    def _exchanges(self, frames: Frames) -> KeyArray:
        """Return the keys of the exchanges that these frames complete and the settings choose."""
        facts = frames.shape.facts
        if self._filter.api and not self._is_of_api[facts.api_key]:
            return np.empty(0, np.uint64)
        keys = exchange_keys(frames.batch[frames.index])
        chosen = self._of_samples(frames.batch[frames.index], self._known(frames.column("conn")))
        if self._filter.topic:
            chosen &= self._names_topic(frames) | np.array([key in self._asked for key in keys.tolist()], np.bool_)
            if not facts.response and facts.acks != 0:
                self._ask(keys[chosen].tolist())
                chosen[:] = False
            else:
                for key in keys[chosen].tolist():
                    self._asked.pop(key, None)
        if self._which.which == "errors" and not (facts.response and facts.errors):
            chosen[:] = False
        if self._which.which == "slower":
            chosen &= facts.response & (frames.column("latency_us") >= self._which.slower_than_us)
        return keys[chosen]

    def _ask(self, keys: Sequence[int]) -> None:
        self._asked.update(dict.fromkeys(keys))
        while len(self._asked) > _ASKED:
            self._asked.popitem(last=False)

    def _names_topic(self, frames: Frames) -> Mask:
        """Return which frames name a topic of the filter. The ids of topics have names by cluster."""
        topics = frames.shape.facts.topics
        conns = frames.column("conn")
        found = {
            conn: any(
                matches(self._filter.topic, name, topic_id)
                for name, topic_id in (self._names.resolve(topic, connection.cluster_id) for topic in topics)
            )
            for conn, connection in self._known(conns).items()
        }
        return np.array([found.get(conn, False) for conn in conns.tolist()], np.bool_)

    def _matches_connection(self, connection: Connection) -> bool:
        identity, workload = connection.identity, connection.workload
        names = ConnectionNames(
            connection.client_id,
            workload.pid,
            (identity.local, identity.peer),
            (f"{connection.conn_id:016x}", identity.flow_id),
            lambda: owner_names(workload.named()),
        )
        return matches_connection(self._filter, names)

    def _known(self, conns: KeyArray) -> dict[int, Connection]:
        """Return those of the connections that are known and not kafka-probe's own."""
        found = ((conn, self._tracker.get(conn)) for conn in np.unique(conns).tolist())
        return {conn: connection for conn, connection in found if connection and not connection.internal}

    @cached_property
    def _is_of_api(self) -> Mask:
        """Return which API keys the filter has, (256,)."""
        names = {api.key: api.name for api in apis().values()}
        return np.array([matches(self._filter.api, names.get(key)) for key in range(NO_API + 1)], np.bool_)

    def _events(
        self, samples: Samples, connections: Mapping[int, Connection], *, spare: float
    ) -> Iterator[FramesEvent]:
        """Yield samples as events; drop and count those beyond the rate. spare: share of the rate that stays unused."""
        clock = WallClock.now()
        for start in range(0, len(samples), self._event_samples):
            part = samples[start : start + self._event_samples]
            known = np.isin(part["conn"], np.array([*connections], np.uint64))
            part = part[known]
            size = int(part["size"].sum(dtype=np.int64)) * 4 // 3 + _SAMPLE_BYTES * len(part)
            if not len(part):
                continue
            if self._rate.take(size, spare):
                yield _frames_event(part, connections, clock)
            else:
                self._rate_losses += len(part)
                self._dropped_ns = max(self._dropped_ns, int(part["ts_ns"].max()))


@dataclass(slots=True)
class _TokenBucket:
    """A token bucket: bytes per second, of which an unused part is kept for _BURST_S."""

    bytes_per_s: int
    left: float = -1
    since_s: float = 0

    def take(self, size: int, spare: float) -> bool:
        """Take bytes and return True if more than the share `spare` of a full bucket is left; else return False."""
        full, now_s = float(self.bytes_per_s * _BURST_S), time.monotonic()
        self.left = full if self.left < 0 else min(full, self.left + (now_s - self.since_s) * self.bytes_per_s)
        self.since_s = now_s
        if self.left - size < spare * full:
            return False
        self.left -= size
        return True


def _abnormal(closed: PendingClose) -> CloseFacts | None:
    """Return the facts of an abnormal close; None of a normal one.

    A close is normal if the client closed the connection in order, right after a response.
    """
    connection = closed.connection
    facts = read_close(closed.sample, tls=connection.opaque == "tls")
    by_client = facts["closed_by"] == ("peer" if connection.identity.server_side else "local")
    idle_us = facts["idle_us"] or 0
    in_order = facts["how"] == "fin" and by_client and not facts["in_flight"] and not facts["owner_exiting"]
    return None if in_order and not connection.auth_error and idle_us < JUST_NS // 1000 else facts


def _frames_event(samples: Samples, connections: Mapping[int, Connection], clock: WallClock) -> FramesEvent:
    distinct, index = np.unique(samples["conn"], return_inverse=True)
    ends = [connections[conn] for conn in distinct.tolist()]
    packed, sizes = memoryview(samples["data"].tobytes()), samples["size"].tolist()
    pieces = [packed[at : at + size] for at, size in zip(range(0, len(packed), DATA_BYTES), sizes, strict=True)]
    columns = {
        **{name: samples[name].tolist() for name in _COLUMNS},
        "end": index.tolist(),
        "monotonic_ns": samples["ts_ns"].tolist(),
        "data": [b64encode(piece).decode() for piece in pieces],
    }
    return {
        "kind": "frames",
        "copy_rules": rules_hash(),
        "wall_offset_ns": clock.offset_ns,
        "ends": [{"conn_id": f"{end.conn_id:016x}", "flow_id": end.identity.flow_id, "side": end.side} for end in ends],
        "samples": cast("FrameSamples", columns),
        "ts": clock.epoch_us(int(samples["ts_ns"].max())),
    }
