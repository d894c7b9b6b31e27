"""Matches many frames at once against the shapes of earlier frames; only frames of new shapes are decoded.

Frames of one code (direction, API, version, copied_all) and length are a group. A group has layouts: each is a mask and
the offsets of the measures that must be above 0. The bytes of a frame under a layout's mask, with the layout's number,
are the key of the frame's shape. NumPy does this for all groups of a batch at once; Python code runs per group and
shape, not per frame.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise, zip_longest

import numpy as np
import numpy.typing as npt

from kafka_probe.memory import DEFAULT
from kafka_probe.protocol.decoder import Readers, decode
from kafka_probe.protocol.facts import POSITIVE, Shape, measure_values, shape_bytes
from kafka_probe.protocol.measures import WORD_BYTES, Bytes, Integers, Numbers, Words, windows

Codes = npt.NDArray[np.uint64]
Decode = Callable[[int, bytes], Shape]
Matched = tuple[int, Shape, Integers, Integers]
"""A shape, the indexes of its frames, (k,) and ascending, and their measures in the shape's order, (k, measures)."""

_LAYOUTS_PER_GROUP = 64
_LENGTH_BITS = 24  # a frame has 65,536 samples at most
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1
_LEAST_WIDTH = 32
_ENTRY_BYTES = 512  # the table's own memory per shape, besides its key
_COPIED_ALL_BIT = 1 << 32
_RESPONSE_BIT = 1 << 33
_UNKNOWN = -1


def code_of(response: bool, api_key: int, api_version: int, copied_all: bool) -> int:
    """Return the code of a frame for `ShapeTable.match`: all that determines its decoding besides the data."""
    return response * _RESPONSE_BIT | copied_all * _COPIED_ALL_BIT | (api_key & 0xFFFF) << 16 | api_version & 0xFFFF


def decode_code(code: int, data: bytes, **readers: Readers) -> Shape:
    """Return the shape of one frame with this code."""
    response, copied_all = bool(code & _RESPONSE_BIT), bool(code & _COPIED_ALL_BIT)
    return decode(response, code >> 16 & 0xFFFF, code & 0xFFFF, data, copied_all=copied_all, **readers).shape()


class ShapeTable:
    """Holds the shapes of a stream of frames.

    If its memory has passed `limit_bytes`, the next `match` clears the table first and counts that in `resets`.
    """

    def __init__(self, decode: Decode = decode_code, limit_bytes: int = DEFAULT.shapes_bytes) -> None:
        self._limit_bytes = limit_bytes
        self.resets = 0
        self._shapes: list[Shape] = []
        self._numbered = 0  # shapes of earlier tables
        self.start_anew(decode)

    def __len__(self) -> int:
        return len(self._shapes)

    def start_anew(self, decode: Decode) -> None:
        """Drop all shapes, and learn new ones by this decoder."""
        self._decode = decode
        self._held_bytes = 0
        self._numbered += len(self._shapes)
        self._shapes = []
        self._measures = Numbers()  # of each shape
        self._known: dict[int, _ShapeKeys] = {}  # by the width of the keys
        self._groups: dict[int, list[int]] = {}  # group key → the numbers of its layouts
        self._layouts: list[tuple[bytes, list[tuple[int, int]]]] = []  # mask, and (offset, width) of POSITIVE measures
        self._positive = Numbers()  # the POSITIVE measures of each layout
        self._masks, self._mask_starts = bytearray(), array("q")  # of each layout, padded to its width

    def match(self, codes: Codes, data: Bytes, starts: Integers, lengths: Integers) -> Iterator[Matched]:
        """Yield every shape of the frames with its number and the frames that have it.

        No other shape ever gets the number. codes: (n,) uint64, see `code_of`; data: uint8, which contains the data of
        each frame; starts, lengths: offset and length of each frame's data, (n,). During a call the table may exceed
        its limit by that call's frames.
        """
        if self._held_bytes >= self._limit_bytes:
            self.start_anew(self._decode)
            self.resets += 1
        groups, group = np.unique(codes << np.uint64(_LENGTH_BITS) | lengths.astype(np.uint64), return_inverse=True)
        widths = _widths((groups & np.uint64(_LENGTH_MASK)).astype(np.int64))
        missing_bytes = (starts + widths[group]).max(initial=0) - len(data)
        if missing_bytes > 0:  # each row is read in its whole width
            data = np.append(data, np.zeros(missing_bytes, np.uint8))
        ids = self._ids(groups, group, widths, data, starts)
        order = ids.astype(np.min_scalar_type(len(self._shapes))).argsort(kind="stable")  # narrow integers sort faster
        ids = ids[order]
        values = self._measures.read(ids, data, starts[order])
        shapes, at = self._shapes, 0
        for first, end in pairwise(np.flatnonzero(np.diff(ids, prepend=_UNKNOWN, append=_UNKNOWN)).tolist()):
            shape_id = int(ids[first])
            shape = shapes[shape_id]
            rows, columns = end - first, len(shape.measures)
            measured = values[at : at + rows * columns].reshape(rows, columns)
            yield self._numbered + shape_id, shape, order[first:end], measured
            at += rows * columns

    def _ids(self, groups: Codes, group: Integers, widths: Integers, data: Bytes, starts: Integers) -> Integers:
        """Return the id of each frame's shape, (n,).

        groups, widths: keys of the groups and the widths of their rows; group: the index of each frame's group, (n,).
        """
        ids = np.full(len(group), _UNKNOWN)
        row_widths, present = widths[group], np.unique(widths).tolist()
        for layouts in zip_longest(*[self._groups.get(key, ()) for key in groups.tolist()], fillvalue=_UNKNOWN):
            layout = np.array(layouts)[group]
            rest = np.flatnonzero((ids == _UNKNOWN) & (layout != _UNKNOWN))
            ids[rest] = self._find(layout[rest], data, starts[rest], row_widths[rest], present)
        new: dict[bytes, int] = {}
        for frame in np.flatnonzero(ids == _UNKNOWN).tolist():
            key = int(groups[group[frame]])
            content = data[starts[frame] :][: key & _LENGTH_MASK].tobytes()
            ids[frame] = self._see(key, content, int(row_widths[frame]), new)
        for width, some in groupby(sorted(new, key=len), len):
            self._known.setdefault(width, _ShapeKeys(width)).add({key: new[key] for key in some})
        return ids

    def _find(self, layouts: Integers, data: Bytes, starts: Integers, widths: Integers, present: list[int]) -> Integers:
        """Return the shape id of each frame under its layout, -1 if there is none; present: all row widths."""
        ids = np.empty(len(layouts), np.int64)
        masks, mask_starts = np.asarray(self._masks), np.asarray(self._mask_starts)[layouts]
        for width in present:
            some = np.flatnonzero(widths == width)
            if not len(some):
                continue
            keys = windows(data, starts[some], width)
            keys &= windows(masks, mask_starts[some], width)
            keys[:, -1] = layouts[some]
            ids[some] = self._known[width].find(keys)
        wrong = self._positive.read(layouts, data, starts) <= 0
        ids[np.arange(len(ids)).repeat(self._positive.counts(layouts))[wrong]] = _UNKNOWN
        return ids

    def _see(self, group_key: int, data: bytes, width: int, new: dict[bytes, int]) -> int:
        """Return the shape id of a frame that `_find` did not find. `new` holds the shapes learned from its batch."""
        group = self._groups.setdefault(group_key, [])
        for layout in group:
            shape_id = new.get(self._key(layout, data, width))
            if shape_id is not None and _fits(self._shapes[shape_id], data):
                return shape_id
        shape = self._decode(group_key >> _LENGTH_BITS, data)
        layout = self._layout(group, shape, width)
        shape_id = new[self._key(layout, data, width)] = len(self._shapes)
        self._shapes.append(shape)
        self._measures.add(shape.measures)
        self._held_bytes += _ENTRY_BYTES + width + shape_bytes(shape)
        return shape_id

    def _layout(self, group: list[int], shape: Shape, width: int) -> int:
        """Return the number of the shape's layout, and add the layout to its group if it is new."""
        positive = [measure for measure in shape.measures if measure.kind in POSITIVE]
        layout = (shape.mask, [(measure.offset, measure.width) for measure in positive])
        for number in group:
            if self._layouts[number] == layout:
                return number
        group.append(len(self._layouts))
        del group[:-_LAYOUTS_PER_GROUP]
        self._layouts.append(layout)
        self._positive.add(positive)
        self._mask_starts.append(len(self._masks))
        self._masks += shape.mask.ljust(width, b"\0")
        return group[-1]

    def _key(self, layout: int, data: bytes, width: int) -> bytes:
        """Return the key of one frame under a layout, as `_find` computes it for many."""
        mask, _ = self._layouts[layout]
        kept = int.from_bytes(data, "little") & int.from_bytes(mask, "little")
        return kept.to_bytes(width - WORD_BYTES, "little") + layout.to_bytes(WORD_BYTES, sys.byteorder)


class _ShapeKeys:
    """Holds shape ids by key, all keys of one width: masked bytes, and in the last word the layout's number."""

    # Hash factors are unpredictable, so that no sender can craft hash collisions.
    _random = np.random.default_rng()

    def __init__(self, width: int) -> None:
        self._factors: Words = self._random.integers(0, 1 << 64, width // 4, np.uint64)
        # All three are sorted by hash.
        self._hashes = np.empty(0, np.uint64)
        self._keys = np.empty((0, width // WORD_BYTES), np.uint64)
        self._ids = np.empty(0, np.int64)

    def add(self, ids: dict[bytes, int]) -> None:
        keys = np.frombuffer(b"".join(ids), np.uint64).reshape(len(ids), -1)
        hashes = np.append(self._hashes, self._hash(keys))
        order = hashes.argsort()
        self._hashes = hashes[order]
        self._keys = np.append(self._keys, keys, axis=0)[order]
        self._ids = np.append(self._ids, [*ids.values()])[order]

    def find(self, keys: Words) -> Integers:
        """Return the id of each key, -1 if unknown: the hash finds the candidate, a comparison of bytes confirms it."""
        ids, hashes = np.full(len(keys), _UNKNOWN), self._hash(keys)
        indices = self._hashes.searchsorted(hashes)
        np.minimum(indices, len(self._ids) - 1, out=indices)
        same = np.flatnonzero(self._hashes.take(indices) == hashes)
        indices = indices[same]
        ids[same] = self._ids.take(indices)
        # Words of other keys with the same hash are so few that to look for them is faster than to compare rows.
        words = np.flatnonzero(self._keys.take(indices, axis=0) != keys.take(same, axis=0))
        ids[same[words // keys.shape[1]]] = _UNKNOWN
        return ids

    def _hash(self, keys: Words) -> Words:
        # 32-bit halves: in a product modulo 2**64, the high bits of a whole word affect only the high bits of the hash.
        halves = keys.view(np.uint32)
        return halves @ self._factors


def _fits(shape: Shape, data: bytes) -> bool:
    """Return True if all POSITIVE measures in the data are above 0."""
    values = zip(shape.measures, measure_values(shape, data), strict=True)
    return all(value > 0 for measure, value in values if measure.kind in POSITIVE)


def _widths(lengths: Integers) -> Integers:
    """Return the row width of frames of each length in bytes, a power of two or three quarters of one.

    Frames of one width are looked up together. A row has space for the frame and one more word, the layout's number.
    """
    least = np.maximum(lengths + WORD_BYTES, _LEAST_WIDTH)
    _, exponents = np.frexp(least - 1)
    powers = np.left_shift(1, exponents, dtype=np.int64)
    widths: Integers = np.where(least <= powers // 4 * 3, powers // 4 * 3, powers)
    return widths
