"""Matches many frames at once against the shapes seen before; only what is new is decoded.

Frames are grouped by code (direction, API, version, copied_all) and length. Within a group every known layout, a mask
with the places of what must be above 0, is laid over all rows: a hash of the masked bytes finds the shape, a comparison
of the bytes proves it. The work is NumPy's; Python's share is per group and layout, not per frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.protocol.decoder import Walks, decode
from kafka_probe.protocol.facts import POSITIVE, Shape
from kafka_probe.protocol.measures import Integers, MeasureReader, Rows

Codes = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint64]
Lengths = npt.NDArray[Any]
Decode = Callable[[int, bytes], Shape]

WORD_BYTES = 8
_LAYOUTS_PER_GROUP = 64
_LENGTH_BITS = 24  # a frame comes in 65,536 records at most
_SHAPE_BYTES = 1024  # what a shape takes besides its data
_COPIED_ALL_BIT = 1 << 32
_RESPONSE_BIT = 1 << 33
_UNKNOWN = -1


def code_of(response: bool, api_key: int, api_version: int, copied_all: bool) -> int:
    """What `ShapeTable.match` takes as the code of a frame: all that decides its decoding besides the data."""
    return response * _RESPONSE_BIT | copied_all * _COPIED_ALL_BIT | (api_key & 0xFFFF) << 16 | api_version & 0xFFFF


def keys_of(codes: Codes, lengths: Lengths) -> Codes:
    """What frames have in common that one mask may fit: their code and the length of their data."""
    return codes << np.uint64(_LENGTH_BITS) | lengths.astype(np.uint64)


def decode_code(code: int, data: bytes, **walks: Walks) -> Shape:
    """The shape of one frame by its code."""
    return decode(
        bool(code & _RESPONSE_BIT),
        code >> 16 & 0xFFFF,
        code & 0xFFFF,
        data,
        copied_all=bool(code & _COPIED_ALL_BIT),
        **walks,
    )


def groups(keys: npt.NDArray[Any]) -> Iterator[Integers]:
    """The places of equal keys, (k,) each and ascending."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    ends = [*(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(keys)]
    start = 0
    for end in ends if len(keys) else ():
        yield order[start:end]
        start = end


class ShapeTable:
    """The shapes of a stream of frames. Ids count up from 0 and hold until a `match` raises `resets`.

    It starts anew, counted in `resets`, at a `match` after what it holds has passed `limit_bytes`.
    """

    def __init__(self, decode: Decode = decode_code, limit_bytes: int = 4 << 20) -> None:
        self._limit_bytes = limit_bytes
        self.resets = 0
        self.start_anew(decode)

    def __len__(self) -> int:
        return len(self._shapes)

    def start_anew(self, decode: Decode) -> None:
        """Forget all shapes, and learn them by another decoder."""
        self._decode = decode
        self._held_bytes = 0
        self._shapes: list[Shape] = []
        self._readers: dict[int, MeasureReader] = {}
        self._layouts: dict[int, list[_Layout]] = {}

    def match(self, codes: Codes, data: Rows, lengths: Lengths) -> Integers:
        """The shape id of every frame.

        codes: (n,) uint64, see `code_of`; data: (n, W) uint8, contiguous, W a multiple of 8; lengths: (n,), how many
        bytes of the row are data. Within one call the table may grow beyond its limit by that call's frames.
        """
        if self._held_bytes >= self._limit_bytes:
            self.start_anew(self._decode)
            self.resets += 1
        ids = np.full(len(codes), _UNKNOWN, np.int64)
        words = data.view(np.uint64)
        keys = keys_of(codes, lengths)
        for members in groups(keys):
            self._match_group(int(keys[members[0]]), members, words, ids)
        return ids

    def shape(self, shape_id: int) -> Shape:
        return self._shapes[shape_id]

    def values(self, shape_id: int, rows: Rows) -> Integers:
        """The measures of frames of one shape, in its order: (k, W) uint8 to (k, measures) int64."""
        reader = self._readers.get(shape_id)
        if reader is None:
            reader = self._readers[shape_id] = MeasureReader(self._shapes[shape_id].measures)
        return reader.read(rows)

    def _match_group(self, key: int, members: Integers, words: Words, ids: Integers) -> None:
        code, length = key >> _LENGTH_BITS, key & (1 << _LENGTH_BITS) - 1
        rows = words[members, : -(-length // WORD_BYTES)]
        layouts = self._layouts.setdefault(key, [])
        known = iter(tuple(layouts))
        while len(members):
            layout = next(known, None)
            if layout is None:
                layout = self._learn(layouts, code, rows[0].tobytes()[:length])
                ids[members[0]] = len(self._shapes) - 1
                members, rows = members[1:], rows[1:]
            found = layout.find(rows)
            ids[members] = found
            missing = found == _UNKNOWN
            members, rows = members[missing], rows[missing]

    def _learn(self, layouts: list[_Layout], code: int, data: bytes) -> _Layout:
        shape = self._decode(code, data)
        positive = tuple(measure for measure in shape.measures if measure.kind in POSITIVE)
        places = tuple((measure.offset, measure.width) for measure in positive)
        for layout in layouts:
            if (layout.mask, layout.places) == (shape.mask, places):
                break
        else:
            layout = _Layout(shape.mask, places, MeasureReader(positive))
            layouts.append(layout)
            del layouts[:-_LAYOUTS_PER_GROUP]
        layout.add(data, len(self._shapes))
        self._shapes.append(shape)
        self._held_bytes += _SHAPE_BYTES + len(data)
        return layout


class _Layout:
    """The shapes that share a mask and the places of what must be above 0."""

    # Unpredictable, so that no sender can craft collisions.
    _random = np.random.default_rng()

    def __init__(self, mask: bytes, places: tuple[tuple[int, int], ...], positive: MeasureReader) -> None:
        self.mask = mask
        self.places = places
        self._positive = positive
        self._mask_words = _words(mask)
        self._factors: Words = self._random.integers(0, 1 << 64, 2 * len(self._mask_words), np.uint64)
        # Ordered by hash.
        self._hashes = np.empty(0, np.uint64)
        self._keys = np.empty((0, len(self._mask_words)), np.uint64)
        self._ids = np.empty(0, np.int64)

    def add(self, data: bytes, shape_id: int) -> None:
        key = _words(data) & self._mask_words
        value = self._hash(key[np.newaxis])[0]
        place = self._hashes.searchsorted(value)
        self._hashes = np.insert(self._hashes, place, value)
        self._keys = np.insert(self._keys, place, key, axis=0)
        self._ids = np.insert(self._ids, place, shape_id)

    def find(self, rows: Words) -> Integers:
        """The shape ids of (k, words) rows, -1 where none fits."""
        masked = rows & self._mask_words
        places = self._hashes.searchsorted(self._hash(masked))
        np.minimum(places, len(self._ids) - 1, out=places)
        fits = (self._keys.take(places, axis=0) == masked).all(axis=1)
        if self.places:
            fits &= (self._positive.read(rows.view(np.uint8)) > 0).all(axis=1)
        return np.where(fits, self._ids.take(places), _UNKNOWN)

    def _hash(self, masked: Words) -> Words:
        # Halves, since of a product modulo 2**64 high bits of the word would only reach high bits of the hash.
        halves = masked.view(np.uint32)
        return halves @ self._factors


def _words(data: bytes) -> Words:
    return np.frombuffer(data + bytes(-len(data) % WORD_BYTES), np.uint64)
