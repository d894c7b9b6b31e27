"""Compiles a plan to one Python function that reads a frame's data: a table-driven reader takes six times as long.

A reader takes (data, end) and returns the offset where it stopped and its results, (at, position, malformed, contents,
located, skipped), see decoded.py; position is None at the plan's end. In the reader, a field that the data's end cuts
raises IndexError or struct.error, and an invalid value raises ValueError; the number of that line identifies the field.

The size of the data bounds the cost of a frame, whatever lengths and counts the frame claims: a reader reads nothing
beyond `end`, keeps or skips a string only if the data contains all of it, and reads an array element by element until
the data ends; each element takes at least one byte. So its loops run at most once per byte of the data.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

from kafka_probe.protocol import wire
from kafka_probe.protocol.decoded import Block, Contents, Located, Skipped
from kafka_probe.protocol.facts import (
    TEXT_CHARACTERS,
    Encoding,
    Fact,
    MeasureKind,
    RecordSet,
    SetStatus,
    TopicFacts,
    cut,
)
from kafka_probe.protocol.plan import Form, PlanStep
from kafka_probe.protocol.roles import Part, Scope


class Position(NamedTuple):
    """The field that a line of the reader reads: its path, and whether its bytes determine the frame's shape.

    For neighboring fields that the line skips as one, `skipped` contains their names and sizes in bytes.
    """

    path: tuple[str, ...]
    skipped: tuple[tuple[str, int], ...]
    decides: bool

    def field(self, left_bytes: int) -> str:
        """Return the path of the field that the data's end cut, `left_bytes` behind the start of the first field."""
        path = self.path
        for name, size in self.skipped:
            path = (*self.path, name)
            if left_bytes < size:
                break
            left_bytes -= size
        return ".".join(path)


Reader = Callable[[bytes, int], tuple[int, Position | None, bool, Contents, list[Located], list[Skipped]]]


def compiled(steps: tuple[PlanStep, ...], kinds: Collection[MeasureKind] = frozenset(MeasureKind)) -> Reader:
    """Return the reader for a plan's steps; from record sets it reads RECORD_BYTES and measures of these kinds."""
    writer = _Writer(kinds)
    writer.steps(steps)
    namespace: dict[str, Any] = {**_NAMES, **writer.constants, "POSITIONS": writer.positions}
    exec("\n".join([_HEAD, *writer.lines, _TAIL]), namespace)
    reader: Reader = namespace["reader"]
    return reader


_HEAD = """\
def reader(data, end):
    values = []; errors = []; topics = []; forgotten = []; record_sets = []; located = []; skipped = []
    position = into = None
    malformed = False
    at = 0
    try:
        t = -1"""
_BEGIN_TOPIC = "name = topic_id = None; partitions = []; topic_errors = []"
_END_TOPIC = "into.append(new(TopicFacts, (name, topic_id, tuple(partitions), tuple(topic_errors)))); into = None"
_TAIL = f"""\
    except (IndexError, StructError, ValueError) as stop:
        position = POSITIONS[stop.__traceback__.tb_lineno - {_HEAD.count(chr(10)) + 2}]
        malformed = isinstance(stop, ValueError)
        if into is not None: {_END_TOPIC}
        for each in topics, forgotten:
            if each[-1:] == UNNAMED: del each[-1]
    contents = tuple(values), counted(errors) if errors else (), tuple(topics), tuple(forgotten), tuple(record_sets)
    return at, position, malformed, contents, located, skipped
"""
_CODES = {(1, True): "b", (2, True): "h", (2, False): "H", (4, True): "i", (8, True): "q"}
_OFFSETS = {MeasureKind.BATCH_FIRST_OFFSET: "first_offset", MeasureKind.BATCH_LAST_OFFSET: "last_offset"}
_OF_RECORDS = {MeasureKind.RECORDS: "records", MeasureKind.BATCHES: "batches"}
_OF_PRODUCER = {MeasureKind.BATCH_PRODUCER_ID: "producer_id", MeasureKind.BATCH_PRODUCER_EPOCH: "producer_epoch"}
_NAMES: dict[str, Any] = {
    "StructError": struct.error,
    "new": tuple.__new__,
    "kept": lambda data: cut(data.decode("utf-8", "replace")),
    "counted": lambda errors: tuple(sorted(Counter(errors).items())),
    "TopicFacts": TopicFacts,
    "RecordSet": RecordSet,
    "NO_ID": bytes(16),
    "UNNAMED": [(None, None, (), ())],  # the data ended before the name of the last topic
    "COUNTED": (SetStatus.COUNTED.value, SetStatus.PARTIAL.value),
    **{name: getattr(wire, name) for name in ("uvarint", "skip_tags")},
    **{f"int_{code}": struct.Struct(f">{code}").unpack_from for code in _CODES.values()},
    **{f"F_{fact.name}": fact for fact in Fact},
}


class _Writer:
    """Generates the lines of a reader."""

    def __init__(self, kinds: Collection[MeasureKind]) -> None:
        self._kinds = kinds
        self.lines: list[str] = []
        self.positions: list[Position] = []
        self.constants: dict[str, object] = {}
        self._path: tuple[str, ...] = ()
        self._depth = 2
        self._error_waits = False  # True between an error code and the partition index behind it

    def steps(self, steps: Sequence[PlanStep]) -> None:
        for skipped, run in groupby(steps, lambda step: step.form is Form.FIXED and step.role is None):
            if skipped:
                self._skip(*[(step.name, step.size) for step in run])
                continue
            for step in run:
                with self._inside(step.name):
                    _WRITERS[step.form](self, step)

    def fixed(self, step: PlanStep) -> None:
        match step.role:
            case MeasureKind.SESSION_EPOCH:
                self._session_epoch()
            case MeasureKind():
                self._measure(step, step.role)
            case Part.PARTITION_INDEX:
                self._number("p", step)
                self._line("partitions.append(p)")
                if self._error_waits:
                    self._line("if n: topic_errors.append((p, n))")
                    self._error_waits = False
            case Part.ERROR:
                self._error(step)
            case Part.TOPIC_ID:
                self._uuid()
                self._line("if raw != NO_ID: topic_id = raw.hex()")
            case Fact() if step.size == 16:
                self._uuid()
                self._line(f"values.append((F_{step.role.name}, raw.hex()))")
            case Fact():
                self._number("n", step)
                self._line(f"values.append((F_{step.role.name}, n))")

    def string(self, step: PlanStep) -> None:
        self._length(step.size)
        text = f"kept(data[at : at + (n if n < {TEXT_CHARACTERS} else {TEXT_CHARACTERS})])"
        match step.role:
            case None:
                self._skip_n()
                return
            case Part.TOPIC:
                use = f"topics.append(new(TopicFacts, ({text}, None, (), ()))); t += 1"
            case Part.TOPIC_NAME:
                use = f"name = {text}"
            case role:
                use = f"values.append((F_{role.name}, {text}))"
        with self._block("if n >= 0:"):
            self._line("if at + n > end: raise IndexError")
            self._line(use)
            self._line("at += n")

    def length(self, step: PlanStep) -> None:
        """Add the lines for a field of which only the length was copied."""
        kind = step.role if isinstance(step.role, MeasureKind) else None
        if step.size and kind:
            self._measure(step, kind)
        else:
            self._line("start = at")
            self._line("_, at = uvarint(data, at)")
            block = self._constant(Block(kind, Encoding.COMPACT_LENGTH))
            self._line(f"located.append(({block}, {', '.join(_place(step))}, start, at))")

    def records(self, step: PlanStep) -> None:
        self._line("start = at")
        self._length(step.size)
        with self._block("if n > 0:"):
            self._line(f"if at + {wire.STUB_BYTES} > end: raise IndexError")
            self._set(Encoding.SIGNED if step.size else Encoding.COMPACT_LENGTH)
            self._line(f"at += {wire.STUB_BYTES}")

    def _set(self, length: Encoding) -> None:
        """Add the lines for a record set; `start` is the offset of its length, `at` that of its stub."""
        magic, _ = wire.STUB_FIELDS["magic"]
        self._line(f"magic, codec, status, flags = data[at + {magic} : at + {magic + 4}]")
        self._line("record_sets.append(new(RecordSet, (t, p, status, magic, codec, flags & 1 > 0, flags & 2 > 0)))")
        bare, counted, with_producer = (
            self._constant(Block(MeasureKind.RECORD_BYTES, length, self._of_stub(fields)))
            for fields in (_OFFSETS, _OF_RECORDS | _OFFSETS, _OF_RECORDS | _OFFSETS | _OF_PRODUCER)
        )
        if_counted = f"{with_producer} if magic == {wire.WITH_PRODUCER} else {counted}"
        self._line(f"located.append((({if_counted}) if status in COUNTED else {bare}, t, p, start, at))")
        if MeasureKind.UNCOUNTED_BYTES in self._kinds:
            uncounted = self._constant(Block(MeasureKind.UNCOUNTED_BYTES, length))
            self._line(f"if status not in COUNTED: located.append(({uncounted}, t, p, start, at))")

    def _of_stub(self, fields: dict[MeasureKind, str]) -> tuple[tuple[MeasureKind, int, int], ...]:
        return tuple((kind, *wire.STUB_FIELDS[name]) for kind, name in fields.items() if kind in self._kinds)

    def array(self, step: PlanStep) -> None:
        (element,) = step.inner
        self._length(step.size)
        if element.form is Form.FIXED and element.role is None:
            self._line(f"n *= {element.size}")
            self._skip_n()
            return
        remaining = f"remaining_{self._depth}"
        self._line(f"{remaining} = n")
        with self._block(f"while {remaining} > 0:"):
            self._line(f"{remaining} -= 1")
            _WRITERS[element.form](self, element)

    def struct(self, step: PlanStep) -> None:
        if Scope.TOPIC in step.opens:
            self._line(f"into = topics; {_BEGIN_TOPIC}; t += 1")
        elif Scope.FORGOTTEN in step.opens:
            self._line(f"into = forgotten; {_BEGIN_TOPIC}")
        if Scope.PARTITION in step.opens:
            roles = [member.role for member in step.inner]
            index = roles.index(Part.PARTITION_INDEX)
            self._error_waits = Part.ERROR in roles[:index]
        self.steps(step.inner)
        if Scope.TOPIC in step.opens or Scope.FORGOTTEN in step.opens:
            self._line(_END_TOPIC)

    def nullable_struct(self, step: PlanStep) -> None:
        self._line("n = data[at]; at += 1")
        with self._block("if n < 128:"):
            self.struct(step.inner[0])

    def tags(self, step: PlanStep) -> None:
        if not step.inner:
            self._line("if data[at]: at = skip_tags(data, at, skipped)")
            self._line("else: at += 1")
            return
        self._line("n, at = uvarint(data, at)")
        size = f"size_{self._depth}"  # sections of tagged fields may be nested
        with self._block("for _ in range(n):"):
            self._line("n, at = uvarint(data, at)")
            self._line(f"{size}, at = uvarint(data, at)")
            for index, field in enumerate(step.inner):
                with self._block(f"{'el' * bool(index)}if n == {field.tag}:"):
                    # Its size may exceed the copied bytes: nested tags that the version does not have are not copied.
                    self.steps((field,))
            with self._block("else:"):
                self._line(f"if at + {size} > end: raise IndexError")
                self._line(f"skipped.append((at, at + {size})); at += {size}")

    def _line(self, text: str, skipped: tuple[tuple[str, int], ...] = (), *, decides: bool = True) -> None:
        self.lines.append("    " * self._depth + text)
        self.positions.append(Position(self._path, skipped, decides))

    def _constant(self, value: object) -> str:
        name = f"C{len(self.constants)}"
        self.constants[name] = value
        return name

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        outer, self._path = self._path, (*self._path, name)
        yield
        self._path = outer

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def _skip(self, *fields: tuple[str, int]) -> None:
        size = sum(size for _, size in fields)
        self._line(f"if at + {size} > end: raise IndexError", fields, decides=False)
        self._line(f"skipped.append((at, at + {size})); at += {size}")

    def _skip_n(self) -> None:
        with self._block("if n > 0:"):
            self._line("if at + n > end: raise IndexError")
            self._line("skipped.append((at, at + n)); at += n")

    def _length(self, size: int) -> None:
        """Add the lines that read a length or count, -1 for null, also if Kafka's definition does not allow null."""
        if size == 0:
            self._line("n = data[at] - 1; at += 1")
            self._line("if n > 126: n, at = uvarint(data, at - 1); n -= 1")
        else:
            self._line(f"n, = int_{_CODES[size, True]}(data, at); at += {size}")
            self._line("if n < -1: raise ValueError")

    def _number(self, name: str, step: PlanStep) -> None:
        self._line(f"{name}, = int_{_CODES[step.size, step.signed]}(data, at); at += {step.size}")

    def _uuid(self) -> None:
        self._line("if at + 16 > end: raise IndexError")
        self._line("raw = data[at : at + 16]; at += 16")

    def _error(self, step: PlanStep) -> None:
        self._number("n", step)
        match step.scope:
            case Scope.FRAME:
                self._line("if n: errors.append(n)")
            case Scope.PARTITION if self._error_waits:
                self._line("if n: errors.append(n)")
            case scope:
                partition = "p" if scope is Scope.PARTITION else "-1"
                self._line(f"if n: errors.append(n); topic_errors.append(({partition}, n))")

    def _measure(self, step: PlanStep, kind: MeasureKind) -> None:
        self._line(f"if at + {step.size} > end: raise IndexError", decides=False)
        block = self._constant(Block(kind, Encoding.SIGNED))
        self._line(f"located.append(({block}, {', '.join(_place(step))}, at, at + {step.size}))")
        self._line(f"at += {step.size}")

    def _session_epoch(self) -> None:
        """Add the lines for a session epoch. Above 0 it counts the session's requests; 0 and -1 have other meanings."""
        self._line("n, = int_i(data, at)")
        with self._block("if n > 0:"):
            self._line("values.append((F_SESSION_EPOCH, 1))")
            block = self._constant(Block(MeasureKind.SESSION_EPOCH, Encoding.SIGNED))
            self._line(f"located.append(({block}, -1, -1, at, at + 4))")
        self._line("else: values.append((F_SESSION_EPOCH, n))")
        self._line("at += 4")


def _place(step: PlanStep) -> tuple[str, str]:
    """Return the variables with topic and partition of a step's measure."""
    return ("t", "p") if step.scope is Scope.PARTITION else ("-1", "-1")


_WRITERS: dict[Form, Callable[[_Writer, PlanStep], None]] = {
    Form.FIXED: _Writer.fixed,
    Form.STRING: _Writer.string,
    Form.LENGTH: _Writer.length,
    Form.RECORDS: _Writer.records,
    Form.ARRAY: _Writer.array,
    Form.STRUCT: _Writer.struct,
    Form.NULLABLE_STRUCT: _Writer.nullable_struct,
    Form.TAGS: _Writer.tags,
}
