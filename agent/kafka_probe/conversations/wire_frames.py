"""Rebuilds frames to their size on the wire from what the kernel copied of them, for readers of packets.

A record set becomes the header of one batch without records, and zeros; hidden fields become zeros. If one field of a
frame lacks its length, the frame's size gives it. The steps follow bpf/copy_program.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from kafka_probe.conversations.copied_frames import CopiedFrame
from kafka_probe.protocol.archive_compatibility import rules_with_hash, unknown_rules
from kafka_probe.protocol.copy_programs import EMPTIED, HIDDEN, OPERAND_BITS, TAG_BITS, Op
from kafka_probe.protocol.kernel_allow_list import HEADER_ONLY, CopyRule, copy_rules
from kafka_probe.protocol.schemas import WIDTHS, SchemaField, apis, fields_of
from kafka_probe.protocol.wire import STUB_BYTES, STUB_FIELDS, uvarint

_UNSUPPORTED_VERSION = 35  # error code
_BATCH = struct.Struct(">qiibIhiqqqhii")  # a record batch of magic 2 up to and with its number of records
_MOST_DELTA = (1 << 31) - 1  # of the last offset of a batch to its first
_NO_TAG = -1
LEAST_FRAME_BYTES, MOST_FRAME_BYTES = 8, (1 << 30) + 3
"""Sizes of frames, with their length prefix, that the kernel takes for Kafka's: MAX_FRAME_BYTES in bpf/cursor.h."""
_LONGEST = {0: 1 << 30, 1: 1 << 30, 2: (1 << 15) - 1, 4: 1 << 30}  # field by the width of its length, see _Emptied


class _Emptied(NamedTuple):
    """A field whose length is missing: the part that has its length, and how that is written."""

    part: int
    width: int  # bytes of a fixed length; 0: a varint of the length plus one; 1: a varint of the length


class Zeros(NamedTuple):
    """A number of bytes that were not copied."""

    size: int


class _EndedError(Exception):
    """Raised when the copied data ends, or a length or count is impossible."""


@dataclass(slots=True)
class WireFrame:
    """A frame from its length prefix on, up to where it is known, and comments on it."""

    parts: list[bytes | Zeros] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)

    @property
    def zeros(self) -> int:
        """Return how many bytes were not copied."""
        return sum(part.size for part in self.parts if isinstance(part, Zeros))

    @property
    def known_bytes(self) -> int:
        return sum(part.size if isinstance(part, Zeros) else len(part) for part in self.parts)


def wire_frame(frame: CopiedFrame) -> WireFrame:
    """Return the frame as far as it can be rebuilt."""
    rebuilt = WireFrame([_head(frame)])
    if frame.first.frame_bytes > MOST_FRAME_BYTES:
        return rebuilt
    whole, emptied = _add_body(rebuilt, frame)
    missing = frame.first.frame_bytes - rebuilt.known_bytes
    if missing < 0:  # it is not what these rules describe: only the header is sure
        rebuilt = WireFrame([_head(frame)])
        missing = frame.first.frame_bytes - rebuilt.known_bytes
    elif whole:
        missing -= _fill(rebuilt, emptied, missing)
    if missing > 0:
        rebuilt.comments.append(f"{missing} bytes of the frame withheld")
        if not frame.response:  # a request that is cut is not matched with its response
            rebuilt.parts.append(Zeros(missing))
    return rebuilt


def _head(frame: CopiedFrame) -> bytes:
    first = frame.first
    numbers = [(first.frame_bytes - 4, 4), (first.correlation_id, 4)]
    if not frame.response:
        numbers[1:1] = [(first.api_key, 2), (first.api_version, 2)]
    # Forged events may have numbers that no frame has.
    return b"".join((number % (1 << 8 * size)).to_bytes(size, "big") for number, size in numbers)


@cache
def _copy_rules(rules: str) -> dict[tuple[int, int], CopyRule]:
    """Return the rules that have this hash, by API key and version; none if it is unknown."""
    known = rules_with_hash(rules)
    return {(rule.api_key, rule.api_version): rule for rule in copy_rules(known.kept_back)} if known else {}


def _add_body(rebuilt: WireFrame, frame: CopiedFrame) -> tuple[bool, list[_Emptied]]:
    """Add the copied part of the body. Return True if that is all of it, and the fields whose length is missing."""
    first = frame.first
    if rules_with_hash(first.copy_rules) is None:
        rebuilt.comments.append(unknown_rules(first.copy_rules))
        return False, []
    rule = _copy_rules(first.copy_rules).get((first.api_key, first.api_version))
    program = () if rule is None else rule.response_program if frame.response else rule.request_program
    run = _CopyProgramRun(frame, program, rebuilt, flexible=rule is not None and rule.flexible)
    whole = run.rebuild()
    if rule and not frame.response and frame.api in HEADER_ONLY:
        run.add_least_body()
    run.comment()
    return whole, run.emptied


def _fill(rebuilt: WireFrame, emptied: list[_Emptied], missing: int) -> int:
    """Give the first fields without a length the bytes that the frame lacks; return how many they have taken."""
    taken = 0
    filled: dict[int, tuple[bytes, Zeros]] = {}
    for place in emptied:
        share = min(missing - taken, _LONGEST[place.width])
        if share <= 0:
            break
        length, prefix = _prefix(place.width, share)
        filled[place.part] = prefix, Zeros(length)
        taken += share
    if filled:
        parts = enumerate(rebuilt.parts)
        rebuilt.parts = [new for number, part in parts for new in filled.get(number, (part,))]
        unsure = "; the lengths of other withheld fields are part of it" if len(emptied) > len(filled) else ""
        rebuilt.comments.append(f"{taken} bytes of fields without a length withheld{unsure}")
    return taken


def _prefix(width: int, missing: int) -> tuple[int, bytes]:
    """Return the length of a field and its encoded prefix, which together fill `missing` bytes beyond a null."""
    if width > 1:
        return missing, missing.to_bytes(width, "big")
    for extra in range(5):  # bytes of the varint beyond the first
        length = missing - extra
        written = _varint(length + (width == 0))
        if len(written) == extra + 1:
            return length, written
    return missing - 1, _varint(missing - 1 + (width == 0)) + bytes(1)  # no varint has that size exactly


def _varint(value: int) -> bytes:
    """Return an unsigned varint."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))


class _CopyProgramRun:
    """Runs a copy program over the copied data, and adds what it describes to a frame.

    An empty program copies all bytes. flexible: lengths are varints.
    """

    def __init__(self, frame: CopiedFrame, program: tuple[int, ...], rebuilt: WireFrame, *, flexible: bool) -> None:
        self._frame = frame
        self._data = frame.data
        self._most = frame.first.frame_bytes  # length or count of a field
        self._at = 0
        self._program = program
        self._flexible = flexible
        self._rebuilt = rebuilt
        self.emptied: list[_Emptied] = []
        self._hidden_bytes = 0
        self._left: list[int] = []  # elements of the arrays and tag sections around the op
        self._tag = _NO_TAG

    def rebuild(self) -> bool:
        """Add the body as far as the data reaches; return True if that is all of it."""
        try:
            self._run()
        except _EndedError:
            return False
        return True

    def _run(self) -> None:
        if not self._frame.response:  # the client id
            length = int.from_bytes(self._copy(2), "big", signed=True)
            self._copy(max(length, 0))
        op_at = 0
        while op_at < len(self._program):
            kind, operand = divmod(self._program[op_at], 1 << OPERAND_BITS)
            if kind in (Op.STOP, Op.REST):
                break
            op_at = self._step(op_at, Op(kind), operand)
        self._copy(len(self._data) - self._at)

    def add_least_body(self) -> None:
        """Add the shortest body of a request that a reader accepts, whose first text or bytes are withheld."""
        api_key, version = self._frame.first.api_key, self._frame.first.api_version
        if self._flexible:
            self._rebuilt.parts.append(b"\0")  # tagged fields of the header
        self._add_least(fields_of(apis()[api_key], response=False, version=version), version)

    def _add_least(self, fields: Iterable[SchemaField], version: int) -> None:
        parts = self._rebuilt.parts
        for each in fields:
            if not _has(each.versions, version) or _has(each.tagged, version):
                continue
            kind = each.type.removeprefix("[]")
            if kind != each.type:
                parts.append(b"\2" if self._flexible else b"\0\0\0\1")  # one element
            if kind in WIDTHS:
                parts.append(bytes(WIDTHS[kind]))
            elif kind == "struct":
                self._add_least(each.fields, version)
            else:
                width = 2 if kind == "string" else 4
                parts.append(b"\1" if self._flexible else bytes(width))
                self._empty(0 if self._flexible else width)
        if self._flexible:
            parts.append(b"\0")

    def _step(self, at: int, op: Op, operand: int) -> int:
        """Take one op; return the index of the next."""
        if op in (Op.FIXED, Op.ACKS):
            self._copy(operand)
        elif op == Op.ERROR:
            if int.from_bytes(self._copy(operand), "big") == _UNSUPPORTED_VERSION:
                return len(self._program)
        elif op == Op.STRING:
            self._string(operand)
        elif op == Op.RECORDS:
            self._records()
        elif op == Op.ITEMS:
            self._copy(self._count(4) * operand)
        elif op == Op.NULLABLE:
            return at + (operand if self._copy(1)[0] & 0x80 else 1)
        elif op == Op.ARRAY:
            return self._begin(at, operand, self._count(4))
        elif op == Op.END:
            return self._next(at, operand)
        elif op == Op.TAGS:
            after = self._begin(at, operand, self._varint())
            if after == at + 1:
                self._tag = self._varint()
            return after
        elif op == Op.TAG:
            tag, skip = divmod(operand, 1 << TAG_BITS)
            if self._tag != tag:
                return at + skip
            self._tag = _NO_TAG
            self._varint()  # its size, which a reader does not need
        elif op == Op.TAGS_END:
            if self._tag != _NO_TAG:
                self._varint()
                self._empty(1)
            after = self._next(at, operand)
            self._tag = self._varint() if after != at + 1 else _NO_TAG
            return after
        return at + 1

    def _begin(self, at: int, operand: int, elements: int) -> int:
        if not elements:
            return at + operand
        self._left.append(elements)
        return at + 1

    def _next(self, at: int, ops: int) -> int:
        self._left[-1] -= 1
        if self._left[-1]:
            return at - ops
        self._left.pop()
        return at + 1

    def _string(self, operand: int) -> None:
        width = operand & ~(HIDDEN | EMPTIED)
        length = self._count(width)
        if operand & HIDDEN:
            self._rebuilt.parts += [Zeros(length)] if length else []
            self._hidden_bytes += length
        elif operand & EMPTIED and not length:  # rules of another release may have copied it
            self._empty(0 if self._flexible else width)
        else:
            self._copy(length)

    def _empty(self, width: int) -> None:
        """Note that the length added last is that of a field whose length was withheld."""
        self.emptied.append(_Emptied(len(self._rebuilt.parts) - 1, width))

    def comment(self) -> None:
        """Add a comment on the hidden fields."""
        if self._hidden_bytes:
            self._rebuilt.comments.append(f"{self._hidden_bytes} bytes of fields withheld")

    def _records(self) -> None:
        size = self._count(4)
        if not size:
            return
        summary = self._take(STUB_BYTES)
        records, batches = (_field(summary, name) for name in ("records", "batches"))
        first, last = (_field(summary, name, signed=True) for name in ("first_offset", "last_offset"))
        self._rebuilt.parts += batch(size, first, last)
        offsets = f", offsets {first} to {last}" if 0 <= first <= last else ""
        self._rebuilt.comments.append(
            f"{size} bytes of records withheld, batch header synthetic: {records} records in {batches} batches counted"
            f"{offsets}"
        )

    def _count(self, width: int) -> int:
        """Copy a length or count, a varint plus one or `width` bytes, and return it; null is 0."""
        value = self._varint() - 1 if self._flexible else int.from_bytes(self._copy(width), "big", signed=True)
        if value > self._most:
            raise _EndedError
        return max(value, 0)

    def _varint(self) -> int:
        try:
            value, end = uvarint(self._data, self._at)
        except (IndexError, ValueError):
            raise _EndedError from None
        self._copy(end - self._at)
        return value

    def _copy(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._rebuilt.parts.append(taken)
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        if len(taken) < size:
            raise _EndedError
        return taken


def _has(versions: tuple[int, int] | None, version: int) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]


def _field(summary: bytes, name: str, *, signed: bool = False) -> int:
    at, size = STUB_FIELDS[name]
    return int.from_bytes(summary[at : at + size], "big", signed=signed)


def batch(size: int, first_offset: int, last_offset: int) -> Iterator[bytes | Zeros]:
    """Yield the bytes of a record set: the header of one empty batch of magic 2, and zeros.

    Offsets that are unknown, or that no record set has, are 0.
    """
    first, delta = first_offset, last_offset - first_offset
    if not (first >= 0 and 0 <= delta <= _MOST_DELTA):
        first = delta = 0
    header = _BATCH.pack(first, size - 12, 0, 2, 0, 0, delta, 0, 0, -1, -1, -1, 0)
    yield header[:size]
    if size > len(header):
        yield Zeros(size - len(header))
