"""Turns samples into frames: finds each frame's shape, for all frames of a batch at once.

The fields of a batch stay NumPy columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.sample import DATA_AT, SAMPLE, Flag, Samples
from kafka_probe.connections import reassembly
from kafka_probe.memory import DEFAULT, Bounds
from kafka_probe.protocol.decoder import Readers
from kafka_probe.protocol.facts import MeasureKind, Shape, Status
from kafka_probe.protocol.measures import Bytes, Integers
from kafka_probe.protocol.shapes import Codes, ShapeTable, code_of, decode_code

LOSSES = {
    **reassembly.LOSSES,
    "frame_truncated": "frames that ended early, or of which too little was copied: counted, but topics may be missing",
    "frame_malformed": "frames that violate Kafka's definition: counted, but fields after the violation are missing",
}
_JUDGED = {Status.TRUNCATED: "frame_truncated", Status.MALFORMED: "frame_malformed"}


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of one shape, in the order of their samples.

    number: that of the shape, which no other shape of the reader ever gets; index: (n,) indices in `batch` of each
    frame's first sample; values: (n, measures of the shape) int64. Frames share the batch, because a sample is long and
    later stages need little of it.
    """

    number: int
    shape: Shape
    batch: Samples
    index: Integers
    values: Integers

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one field of the frames' first samples, (n,)."""
        return self.batch[name][self.index]


class FrameReader:
    """Reads frames from batches of FRAME samples. Keeps their shapes, and the frames that a batch left unfinished.

    kinds: the measures that the agent needs. Others are not read: they are the larger part of most frames.
    """

    def __init__(self, kinds: Iterable[MeasureKind] = MeasureKind, bounds: Bounds = DEFAULT) -> None:
        self._table = ShapeTable(partial(decode_code, readers=Readers(kinds)), bounds.shapes_bytes)
        self._reassembler = reassembly.Reassembler(bounds.unfinished_bytes)
        self._judged = Counter(dict.fromkeys(_JUDGED.values(), 0))

    def set_measures(self, kinds: Iterable[MeasureKind] = MeasureKind) -> None:
        """Read these measures from now on."""
        self._table.start_anew(partial(decode_code, readers=Readers(kinds)))

    @property
    def losses(self) -> dict[str, int]:
        """Return the losses since the start, by the names of LOSSES."""
        return {**self._reassembler.losses, **self._judged}

    @property
    def counters(self) -> dict[str, int]:
        """Return how often since the start the table of shapes was full and was emptied."""
        return {"shapes_reset": self._table.resets}

    def read(self, samples: Samples) -> Iterator[Frames]:
        """Yield the frames of a batch by shape; samples: (n,) of SAMPLE, contiguous, all of kind FRAME."""
        for frames in self._read(samples):
            status = frames.shape.facts.status
            if status in _JUDGED:
                self._judged[_JUDGED[status]] += len(frames.index)
            yield frames

    def forget(self, conn: int) -> None:
        """Drop the unfinished frames of a connection that has ended, and count them as lost."""
        self._reassembler.forget(conn)

    def unfinished(self) -> set[int]:
        """Return the streams that have an unfinished frame now, as `keep` takes them."""
        return self._reassembler.unfinished()

    def keep(self, streams: Collection[int], conns: Iterable[int]) -> None:
        """Drop the unfinished frames of these streams, except those of the given connections."""
        self._reassembler.keep(streams, conns)

    def _read(self, samples: Samples) -> Iterator[Frames]:
        alone = (samples["part"] == 0) & (samples["flags"] & Flag.MORE == 0)
        index = np.flatnonzero(alone)
        codes, lengths = _codes(samples)[index], samples["size"][index].astype(np.int64)
        starts = index * SAMPLE.itemsize + DATA_AT
        yield from self._match(samples, index, codes, samples.view(np.uint8), starts, lengths)
        if len(index) < len(samples):
            joined = self._reassembler.join(samples.take(np.flatnonzero(~alone)))
            codes, index = _codes(joined.lasts), np.arange(len(joined.lasts))
            yield from self._match(joined.firsts, index, codes, joined.data, joined.starts, joined.lengths)

    def _match(
        self, batch: Samples, index: Integers, codes: Codes, data: Bytes, starts: Integers, lengths: Integers
    ) -> Iterator[Frames]:
        for number, shape, members, values in self._table.match(codes, data, starts, lengths):
            yield Frames(number, shape, batch, index[members], values)


def _codes(samples: Samples) -> Codes:
    """Return the code of each frame, (n,), from its last sample."""
    codes: Codes = _BY_FLAGS[samples["flags"]] | samples["api_key"].astype(np.uint64) << 16 | samples["api_version"]
    return codes


_BY_FLAGS = np.array(
    [code_of(bool(flags & Flag.RESPONSE), 0, 0, copied_all=not flags & Flag.CUT) for flags in range(256)], np.uint64
)
