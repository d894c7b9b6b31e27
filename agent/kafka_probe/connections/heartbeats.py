"""Finds the few heartbeats whose response changes the members of a group.

A broker with a hundred thousand members answers some thirty thousand heartbeats per second. So requests are compared
with those responses only that assign partitions or refuse the member, as arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kafka_probe.connections.frame_reader import Frames
from kafka_probe.connections.refusals import Keys, keys_of
from kafka_probe.protocol.membership import may_change_member

MOST_UNANSWERED = 1024
"""Most heartbeats that wait for their response in a later batch."""


class Heartbeats:
    """Holds the newest heartbeats that have no response yet. losses: counts `membership_limit`."""

    def __init__(self, losses: Counter[str]) -> None:
        self._losses = losses
        self._unanswered: list[Frames] = []

    def changing(
        self, heartbeats: Sequence[Frames], conns: Collection[int], chosen: Sequence[Frames]
    ) -> Iterator[Frames]:
        """Yield the frames of a batch's heartbeats that may change members.

        These are responses that may change them, with their requests, which may be of an earlier batch; and all
        responses on connections with requests that wait for one: conns, the kernel's ids, and those of chosen frames.
        """
        requests = [*self._unanswered, *(frames for frames in heartbeats if not frames.shape.facts.response)]
        responses = [frames for frames in heartbeats if frames.shape.facts.response]
        changing = [frames for frames in responses if may_change_member(frames.shape.facts)]
        if changing:
            keys = _keys(changing)
            known = _keys(requests)
            self._losses["membership_limit"] += int((~np.isin(keys, known)).sum())
            yield from (_only(frames, np.isin(keys_of(frames), keys)) for frames in requests)
            yield from changing
        if waiting := {*conns, *(conn for frames in chosen for conn in frames.column("conn").tolist())}:
            ids = np.fromiter(waiting, np.uint64, len(waiting))
            for frames in responses:
                if not may_change_member(frames.shape.facts):
                    yield _only(frames, np.isin(frames.column("conn"), ids))
        self._unanswered = _without_response(requests, _keys(responses))


def _without_response(requests: Sequence[Frames], answered: Keys) -> list[Frames]:
    """Return the newest requests that have no response, with copies of their samples."""
    left, found = MOST_UNANSWERED, list[Frames]()
    for frames in reversed(requests):
        rows = np.flatnonzero(~np.isin(keys_of(frames), answered))
        if len(rows := rows[max(len(rows) - left, 0) :]):
            samples = frames.batch.take(frames.index[rows])
            found.append(Frames(frames.number, frames.shape, samples, np.arange(len(rows)), frames.values[rows]))
            left -= len(rows)
    return found[::-1]


def _keys(batch: Sequence[Frames]) -> Keys:
    return np.concatenate([np.empty(0, np.uint64), *map(keys_of, batch)])


def _only(frames: Frames, rows: npt.NDArray[np.bool_]) -> Frames:
    return Frames(frames.number, frames.shape, frames.batch, frames.index[rows], frames.values[rows])
