"""Decodes what the kernel copied of one frame into its shape. Sans-IO; bad bytes give a status, never an exception.

Data of a request begins at the client id, of a response behind the correlation id. In the place of every record set
that is not empty stands a stub of 24 bytes, written by the kernel: struct set_summary of bpf/record.h. The data may end
anywhere: the facts are those read before.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from kafka_probe.protocol.collector import Collector
from kafka_probe.protocol.facts import Encoding, Kind, Shape, Status
from kafka_probe.protocol.plan import Form, Role, Step, plan_for

if TYPE_CHECKING:
    from collections.abc import Callable

STUB_BYTES = 24
_STUB_COUNT_BYTES = 4
_STUB_STATUS = 10
_VARINT_MAX_BYTES = 5
_MEASURED = {Role.OFFSET: Kind.OFFSET, Role.THROTTLE_MS: Kind.THROTTLE_MS}


class RecordSet(IntEnum):
    """What the kernel could count of a record set: enum set_status of bpf/record.h, the status in its stub."""

    COUNTED = 0
    UNREADABLE = 1  # nothing could be read, as with sendfile
    PARTIAL = 2  # the broker cut the last batch, which clients leave aside: not counted, and not missing
    WRAPPER = 3  # compressed messages of magic 0 or 1 hide how many they are


_COUNTS = (RecordSet.COUNTED, RecordSet.PARTIAL)


def decode(response: bool, api_key: int, api_version: int, data: bytes, *, copied_all: bool) -> Shape:
    """The shape of a frame. `copied_all`: the data is all of the frame but its record sets, so that a field that ends
    beyond it is malformed; without it such a frame is truncated."""
    walk = _Walk(data)
    plan = plan_for(response, api_key, api_version, data)
    status, stopped_at = plan.done, None
    try:
        walk.fields(plan.steps)
    except _WalkError as stop:
        status = Status.TRUNCATED if stop.at_end and not copied_all else Status.MALFORMED
        stopped_at = ".".join(reversed(stop.path))
    facts = walk.found.facts(response, api_key, api_version, status, stopped_at)
    return Shape(facts, bytes(walk.mask), tuple(walk.found.measures))


class _WalkError(Exception):
    """Unwinds the walk; never leaves this file. `at_end`: more data might have helped; `path`: innermost first."""

    def __init__(self, *, at_end: bool) -> None:
        self.at_end = at_end
        self.path: list[str] = []


class _Walk:
    """A cursor over the data. The mask starts as all zero: a byte decides only once something was made of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.mask = bytearray(len(data))
        self.found = Collector()

    def fields(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            try:
                _WALKS[step.form](self, step)
            except _WalkError as stop:
                stop.path.append(step.name)
                raise

    def fixed(self, step: Step) -> None:
        role = step.role
        if role is None:
            self._skip(step.size)
        elif role in _MEASURED:
            self.found.measure(_MEASURED[role], self._skip(step.size), step.size)
        else:
            raw = self._keep(step.size)
            self.found.note(role, raw if role is Role.TOPIC_ID else int.from_bytes(raw, "big", signed=True))

    def string(self, step: Step) -> None:
        length = self._length(step.size)
        if length >= 0:
            if step.role is None:
                self._skip(length)
            else:
                self.found.note(step.role, self._keep(length).decode(errors="replace"))

    def array(self, step: Step) -> None:
        (element,) = step.inner
        count = self._length(step.size)
        if element.form is Form.FIXED and element.role is None:
            self._skip(max(count, 0) * element.size)
            return
        # A count that promises too much ends with the data: every element takes at least one byte.
        walk = _WALKS[element.form]
        for _ in range(count):
            walk(self, element)

    def struct(self, step: Step) -> None:
        if step.role is not None:
            self.found.enter(step.role)
        self.fields(step.inner)

    def nullable_struct(self, step: Step) -> None:
        if self._keep(step.size)[0] < 0x80:
            self.struct(step.inner[0])

    def tags(self, _step: Step) -> None:
        for _ in range(self._uvarint()):
            self._uvarint()
            self._skip(self._uvarint())

    def records(self, step: Step) -> None:
        start = self.at
        if self._length(step.size) <= 0:
            return
        width = self.at - start
        stub = self._skip(STUB_BYTES)
        self.mask[stub + _STUB_STATUS] = 0xFF
        # The length is a measure: it decides only by being above 0 (see Shape), and a varint by its own width.
        self.mask[start : start + width] = (b"\0" if step.size else b"\x80") * width
        encoding = Encoding.SIGNED if step.size else Encoding.COMPACT_LENGTH
        self.found.measure(Kind.RECORD_BYTES, start, width, encoding)
        if self.data[stub + _STUB_STATUS] in _COUNTS:
            self.found.measure(Kind.RECORDS, stub, _STUB_COUNT_BYTES)
        else:
            self.found.measure(Kind.UNCOUNTED_BYTES, start, width, encoding)

    def _skip(self, size: int) -> int:
        start = self.at
        if size > len(self.data) - start:
            raise _WalkError(at_end=True)
        self.at = start + size
        return start

    def _keep(self, size: int) -> bytes:
        start = self._skip(size)
        self.mask[start : self.at] = b"\xff" * size
        return self.data[start : self.at]

    def _uvarint(self) -> int:
        value = 0
        encoded = self.data[self.at : self.at + _VARINT_MAX_BYTES]
        for place, byte in enumerate(encoded):
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                self._keep(place + 1)
                return value
        self._keep(len(encoded))
        raise _WalkError(at_end=len(encoded) < _VARINT_MAX_BYTES)

    def _length(self, size: int) -> int:
        """A length or count, -1 for null. Null is accepted where Kafka's definition does not allow it."""
        length = int.from_bytes(self._keep(size), "big", signed=True) if size else self._uvarint() - 1
        if length < -1:
            raise _WalkError(at_end=False)
        return length


_WALKS: dict[Form, Callable[[_Walk, Step], None]] = {
    Form.FIXED: _Walk.fixed,
    Form.STRING: _Walk.string,
    Form.RECORDS: _Walk.records,
    Form.ARRAY: _Walk.array,
    Form.STRUCT: _Walk.struct,
    Form.NULLABLE_STRUCT: _Walk.nullable_struct,
    Form.TAGS: _Walk.tags,
}
