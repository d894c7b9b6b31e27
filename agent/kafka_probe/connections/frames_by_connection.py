"""Sorts the frames of one shape by connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.frame_reader import Frames

Key = tuple[int, int]
"""A connection, by the kernel's id, and the number of a shape."""


@dataclass(frozen=True, slots=True)
class FramesByConnection:
    """Frames of one shape, sorted by connection.

    order: (n,) indices of the frames; starts: (connections,) where in `order` the frames of each connection start;
    runs: by connection its key, the connection if known, and the start and end of its frames in `order`.
    """

    frames: Frames
    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    runs: list[tuple[Key, Connection | None, int, int]]

    @classmethod
    def of(cls, frames: Frames, find: Callable[[int, int], Connection | None]) -> Self:
        """Sort frames. find: returns the connection of an id and its number of frames."""
        conns = frames.column("conn")
        order = np.argsort(conns, kind="stable")
        conns = conns[order]
        starts = np.concatenate(([0], np.flatnonzero(conns[1:] != conns[:-1]) + 1))
        ends = *starts[1:].tolist(), len(order)
        runs = [
            ((conn, frames.number), find(conn, end - start), start, end)
            for conn, start, end in zip(conns[starts].tolist(), starts.tolist(), ends, strict=True)
        ]
        return cls(frames, order, starts, runs)
