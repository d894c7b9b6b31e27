"""Turns a plan into one Python function that walks over the data of a frame: a walk by tables takes six times as long.

The function takes (data, end, mask) and returns where it stopped and what it found, (at, place, malformed, found);
place is None at the plan's end. The mask comes as all ones, and is zero afterwards where bytes that were walked over do
not decide. A field that the data's end cuts raises IndexError or struct.error inside of it, a value that cannot be
raises ValueError; the line that raised says which field it was.

What a frame can cost is bounded by its data, whatever lengths and counts it claims: nothing is read beyond `end`, a
string is taken or skipped only if it ends before that, and an array's elements are walked one by one until the data
ends, each of which takes at least one byte. So a walk's loops turn at most as often as the data has bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

from kafka_probe.protocol import wire
from kafka_probe.protocol.facts import Encoding, Fact, Kind, SetStatus
from kafka_probe.protocol.found import Found
from kafka_probe.protocol.plan import Form, Step
from kafka_probe.protocol.roles import Part, Scope


class Place(NamedTuple):
    """What a line is about: the path of its field, or of neighbours that are skipped as one, with their sizes; and
    whether its bytes decide."""

    path: tuple[str, ...]
    skipped: tuple[tuple[str, int], ...]
    decides: bool

    def field(self, left_bytes: int) -> str:
        """The path of the field that the data's end cut, so many bytes behind the start of the first."""
        path = self.path
        for name, size in self.skipped:
            path = (*self.path, name)
            if left_bytes < size:
                break
            left_bytes -= size
        return ".".join(path)


Walk = Callable[[bytes, int, bytearray], tuple[int, Place | None, bool, Found]]


def compiled(steps: tuple[Step, ...], kinds: Collection[Kind] = frozenset(Kind)) -> Walk:
    """The walk of a plan's steps; of record sets it takes the measures of these kinds."""
    writer = _Writer(kinds)
    writer.steps(steps)
    namespace: dict[str, Any] = {**_NAMES, "PLACES": writer.places}
    exec("\n".join([_HEAD, *writer.lines, _TAIL]), namespace)
    walk: Walk = namespace["walk"]
    return walk


_HEAD = """\
def walk(data, end, mask):
    values, errors, topics, forgotten, record_sets, measures = found = [], [], [], [], [], []
    at = 0
    try:
        t = -1"""
_TAIL = f"""\
    except (IndexError, StructError, ValueError) as stop:
        place = PLACES[stop.__traceback__.tb_lineno - {_HEAD.count(chr(10)) + 2}]
        return at, place, isinstance(stop, ValueError), found
    return at, None, False, found
"""
_CODES = {(1, True): "b", (2, True): "h", (2, False): "H", (4, True): "i", (8, True): "q"}
_NAMES: dict[str, Any] = {
    "StructError": struct.error,
    "SIGNED": Encoding.SIGNED,
    "NO_ID": bytes(16),
    "COMPACT": Encoding.COMPACT_LENGTH,
    "COUNTED": (SetStatus.COUNTED.value, SetStatus.PARTIAL.value),
    **{name: getattr(wire, name) for name in ("STUB_MASK", "uvarint", "skip_tags")},
    **{f"int_{code}": struct.Struct(f">{code}").unpack_from for code in _CODES.values()},
    **{f"F_{fact.name}": fact for fact in Fact},
    **{f"K_{kind.name}": kind for kind in Kind},
}


class _Writer:
    """Writes the lines."""

    def __init__(self, kinds: Collection[Kind]) -> None:
        self._kinds = kinds
        self.lines: list[str] = []
        self.places: list[Place] = []
        self._path: tuple[str, ...] = ()
        self._depth = 2
        self._error_waits = False  # for the index of its partition

    def steps(self, steps: Sequence[Step]) -> None:
        for skipped, run in groupby(steps, lambda step: step.form is Form.FIXED and step.role is None):
            if skipped:
                self._skip(*[(step.name, step.size) for step in run])
                continue
            for step in run:
                with self._inside(step.name):
                    _WRITERS[step.form](self, step)

    def fixed(self, step: Step) -> None:
        match step.role:
            case Kind.SESSION_EPOCH:
                self._session_epoch()
            case Kind():
                self._measure(step, step.role)
            case Part.PARTITION_INDEX:
                self._number("p", step)
                self._line("topic[2].append(p)")
                if self._error_waits:
                    self._line("if n: topic[3].append((p, n))")
                    self._error_waits = False
            case Part.ERROR:
                self._error(step)
            case Part.TOPIC_ID:
                self._uuid()
                self._line("if raw != NO_ID: topic[1] = raw.hex()")
            case Fact() if step.size == 16:
                self._uuid()
                self._line(f"values.append((F_{step.role.name}, raw.hex()))")
            case Fact():
                self._number("n", step)
                self._line(f"values.append((F_{step.role.name}, n))")

    def string(self, step: Step) -> None:
        self._length(step.size)
        text = "data[at : at + n].decode('utf-8', 'replace')"
        match step.role:
            case None:
                self._skip_n()
                return
            case Part.TOPIC:
                use = f"topics.append([{text}, None, [], []]); t += 1"
            case Part.TOPIC_NAME:
                use = f"topic[0] = {text}"
            case role:
                use = f"values.append((F_{role.name}, {text}))"
        with self._block("if n >= 0:"):
            self._line("if at + n > end: raise IndexError")
            self._line(use)
            self._line("at += n")

    def records(self, step: Step) -> None:
        self._line("start = at")
        self._length(step.size)
        with self._block("if n > 0:"):
            self._line(f"if at + {wire.STUB_BYTES} > end: raise IndexError")
            # The length is a measure: it decides only by being above 0 (see Shape), and a varint by its own width.
            length = r"b'\0'" if step.size else r"b'\x80'"
            self._set("SIGNED" if step.size else "COMPACT")
            self._line(f"at += {wire.STUB_BYTES}")
            self._line(f"mask[start:at] = {length} * (at - start - {wire.STUB_BYTES}) + STUB_MASK")

    def _set(self, length: str) -> None:
        """A record set whose length stands at `start`, and whose stub at `at`."""
        magic, _ = wire.STUB_FIELDS["magic"]
        self._line(f"magic, codec, status, flags = data[at + {magic} : at + {magic + 4}]")
        self._line("record_sets.append((t, p, status, magic, codec, flags & 1 > 0, flags & 2 > 0))")
        self._line(f"measures.append((K_RECORD_BYTES, t, p, start, at - start, {length}))")
        self._set_numbers("if status in COUNTED:", records=Kind.RECORDS, batches=Kind.BATCHES)
        producer = {"producer_id": Kind.BATCH_PRODUCER_ID, "producer_epoch": Kind.BATCH_PRODUCER_EPOCH}
        self._set_numbers(f"if magic == {wire.WITH_PRODUCER} and status in COUNTED:", **producer)
        if Kind.UNCOUNTED_BYTES in self._kinds:
            uncounted = f"measures.append((K_UNCOUNTED_BYTES, t, p, start, at - start, {length}))"
            self._line(f"if status not in COUNTED: {uncounted}")

    def _set_numbers(self, head: str, **fields: Kind) -> None:
        places = [(kind, *wire.STUB_FIELDS[name]) for name, kind in fields.items() if kind in self._kinds]
        if places:
            numbers = [f"(K_{kind.name}, t, p, at + {offset}, {width}, SIGNED)" for kind, offset, width in places]
            self._line(f"{head} measures += [{', '.join(numbers)}]")

    def array(self, step: Step) -> None:
        (element,) = step.inner
        self._length(step.size)
        if element.form is Form.FIXED and element.role is None:
            self._line(f"n *= {element.size}")
            self._skip_n()
            return
        with self._block("for _ in range(n):"):
            _WRITERS[element.form](self, element)

    def struct(self, step: Step) -> None:
        for scope in step.opens:
            if scope is Scope.TOPIC:
                self._line("topic = [None, None, [], []]; topics.append(topic); t += 1")
            elif scope is Scope.FORGOTTEN:
                self._line("topic = [None, None, [], []]; forgotten.append(topic)")
        if Scope.PARTITION in step.opens:
            roles = [member.role for member in step.inner]
            index = roles.index(Part.PARTITION_INDEX)
            self._error_waits = Part.ERROR in roles[:index]
        self.steps(step.inner)

    def nullable_struct(self, step: Step) -> None:
        self._line("n = data[at]; at += 1")
        with self._block("if n < 128:"):
            self.struct(step.inner[0])

    def tags(self, step: Step) -> None:
        if not step.inner:
            self._line("if data[at]: at = skip_tags(data, at, mask)")
            self._line("else: at += 1")
            return
        self._line("n, at = uvarint(data, at)")
        stop = f"stop_{self._depth}"  # tags may stand inside of tags
        with self._block("for _ in range(n):"):
            self._line("n, at = uvarint(data, at)")
            self._line(f"{stop}, at = uvarint(data, at)")
            self._line(f"{stop} += at")
            self._line(f"if {stop} > end: raise IndexError")
            for place, field in enumerate(step.inner):
                with self._block(f"{'el' * bool(place)}if n == {field.tag}:"):
                    self.steps((field,))
            self._line(f"if at > {stop}: raise ValueError")
            self._line(f"mask[at:{stop}] = bytes({stop} - at); at = {stop}")

    def _line(self, text: str, skipped: tuple[tuple[str, int], ...] = (), *, decides: bool = True) -> None:
        self.lines.append("    " * self._depth + text)
        self.places.append(Place(self._path, skipped, decides))

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

    def _ignore(self, size: int, skipped: tuple[tuple[str, int], ...] = ()) -> None:
        """So many bytes that do not decide must be there."""
        self._line(f"if at + {size} > end: raise IndexError", skipped, decides=False)
        self._line(f"mask[at : at + {size}] = {bytes(size)!r}")

    def _skip(self, *fields: tuple[str, int]) -> None:
        size = sum(size for _, size in fields)
        self._ignore(size, fields)
        self._line(f"at += {size}")

    def _skip_n(self) -> None:
        with self._block("if n > 0:"):
            self._line("if at + n > end: raise IndexError")
            self._line("mask[at : at + n] = bytes(n); at += n")

    def _length(self, size: int) -> None:
        """A length or count, -1 for null. Null is accepted where Kafka's definition does not allow it."""
        if size == 0:
            self._line("n = data[at] - 1; at += 1")
            self._line("if n > 126: n, at = uvarint(data, at - 1); n -= 1")
        else:
            self._line(f"n, = int_{_CODES[size, True]}(data, at); at += {size}")
            self._line("if n < -1: raise ValueError")

    def _number(self, name: str, step: Step) -> None:
        self._line(f"{name}, = int_{_CODES[step.size, step.signed]}(data, at); at += {step.size}")

    def _uuid(self) -> None:
        self._line("if at + 16 > end: raise IndexError")
        self._line("raw = data[at : at + 16]; at += 16")

    def _error(self, step: Step) -> None:
        self._number("n", step)
        match step.scope:
            case Scope.FRAME:
                self._line("if n: errors.append(n)")
            case Scope.PARTITION if self._error_waits:
                self._line("if n: errors.append(n)")
            case scope:
                partition = "p" if scope is Scope.PARTITION else "-1"
                self._line(f"if n: errors.append(n); topic[3].append(({partition}, n))")

    def _measure(self, step: Step, kind: Kind) -> None:
        topic, partition = ("t", "p") if step.scope is Scope.PARTITION else ("-1", "-1")
        self._ignore(step.size)
        self._line(f"measures.append((K_{kind.name}, {topic}, {partition}, at, {step.size}, SIGNED))")
        self._line(f"at += {step.size}")

    def _session_epoch(self) -> None:
        """Above 0 it counts the session's requests; 0 and -1 mean something of their own."""
        self._line("n, = int_i(data, at)")
        with self._block("if n > 0:"):
            self._line("values.append((F_SESSION_EPOCH, 1))")
            self._line("measures.append((K_SESSION_EPOCH, -1, -1, at, 4, SIGNED))")
            self._line("mask[at : at + 4] = bytes(4)")
        self._line("else: values.append((F_SESSION_EPOCH, n))")
        self._line("at += 4")


_WRITERS: dict[Form, Callable[[_Writer, Step], None]] = {
    Form.FIXED: _Writer.fixed,
    Form.STRING: _Writer.string,
    Form.RECORDS: _Writer.records,
    Form.ARRAY: _Writer.array,
    Form.STRUCT: _Writer.struct,
    Form.NULLABLE_STRUCT: _Writer.nullable_struct,
    Form.TAGS: _Writer.tags,
}
