"""Builds messages as trees, dicts by Kafka's field names, and writes them as bytes.

The bytes are as on the wire, for others' codecs to judge, or as the kernel leaves them, with a stub per record set.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from kafka_probe.protocol.facts import SetStatus
from kafka_probe.protocol.kernel_allow_list import EMPTIED, HIDDEN
from kafka_probe.protocol.schemas import Api, SchemaField, apis, fields_of

CLIENT_ID = "billing-1"
FOREIGN = b"a field of another version"
Tree = dict[str, Any]

_FORMATS = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d"}
COUNTS = (0, 1, 2, 3)
"""Numbers of elements of a list."""


class Records(NamedTuple):
    """A record set: its bytes on the wire, and the counts in the kernel's stub."""

    data: bytes
    records: int = 40
    batches: int = 1
    magic: int = 2
    codec: int = 3
    status: int = SetStatus.COUNTED
    flags: int = 0
    producer_id: int = 4000
    producer_epoch: int = 6
    first_offset: int = 500
    last_offset: int = 539

    @property
    def stub(self) -> bytes:
        return struct.pack(">IIBBBBqhxxqq", *self[1:])


@dataclass(frozen=True)
class _Form:
    """The form in which a message is written: as on the wire, or as it leaves the kernel.

    hidden: names of strings of which only the length leaves the kernel, as of all bytes; emptied: of strings whose
    length stays there, too.
    """

    version: int
    flexible: bool
    foreign: tuple[int, ...] = ()
    leaves: bool = False
    hidden: frozenset[str] = frozenset()
    emptied: frozenset[str] = frozenset()

    def tags(self, known: list[bytes]) -> bytes:
        content = b"" if self.leaves else FOREIGN
        foreign = [uvarint(number) + uvarint(len(content)) + content for number in self.foreign]
        written = foreign[:1] + known + foreign[1:]
        return uvarint(len(written)) + b"".join(written)


@dataclass(frozen=True)
class Message:
    """One message of a version, in one direction. foreign: numbers of tagged fields that the version does not have;
    each stands in every section of tagged fields and contains FOREIGN."""

    api: Api
    response: bool
    version: int
    tree: Tree
    foreign: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.api.name} {'response' if self.response else 'request'} {self.version}"

    @property
    def fields(self) -> tuple[SchemaField, ...]:
        return fields_of(self.api, response=self.response, version=self.version)

    @property
    def body(self) -> bytes:
        """Return the body as on the wire."""
        return _struct(self.fields, self.tree, self._form)

    def frame(self, correlation_id: int = 1) -> bytes:
        """Return the frame as on the wire."""
        named = b"" if self.response else struct.pack(">hh", self.api.key, self.version)
        frame = named + struct.pack(">i", correlation_id) + self.header + self.body
        return struct.pack(">i", len(frame)) + frame

    @property
    def data(self) -> bytes:
        """Return the frame as it leaves the kernel, from its client id or from behind its correlation id."""
        hidden, emptied = (which.get(self.api.name, frozenset()) for which in (HIDDEN, EMPTIED))
        form = replace(self._form, leaves=True, hidden=hidden, emptied=emptied)
        return self._header(form) + _struct(self.fields, self.tree, form)

    @property
    def holds_records(self) -> bool:
        """Return True if the message has a record set."""
        return any(field.type == "records" for field in _all(self.fields))

    @property
    def header(self) -> bytes:
        return self._header(self._form)

    @property
    def _form(self) -> _Form:
        return _Form(self.version, self.api.flexible(self.version), self.foreign)

    def _header(self, form: _Form) -> bytes:
        if self.response:
            return form.tags([]) if self.api.flexible_response_header(self.version) else b""
        if (self.api.name, self.version) == ("ControlledShutdown", 0):
            return b""
        return _text(CLIENT_ID, compact=False) + (form.tags([]) if form.flexible else b"")


class Full(Random):
    """Chooses no null, and of each list at least one element, so that every struct is there."""

    def random(self) -> float:
        return 0.2 + 0.8 * super().random()

    def choice(self, choices: Any) -> Any:
        return super().choice(choices[1:] if choices == COUNTS else choices)


def generated(api: Api, response: bool, version: int, seed: int, chooser: type[Random] = Random) -> Message:
    """Return a message with arbitrary values, of Random some null or empty."""
    chosen = chooser(f"{api.key} {response} {version} {seed}")
    fields = fields_of(api, response=response, version=version)
    return Message(api, response, version, _generated(fields, version, chosen))


def message_of(name: str, response: bool, version: int, tree: Tree) -> Message:
    """Return a message with the given values.

    Fields that the version does not have are left out; those not given are null, 0 or empty.
    """
    api = next(api for api in apis().values() if api.name == name)
    fields = fields_of(api, response=response, version=version)
    return Message(api, response, version, _completed(fields, version, tree))


def present(fields: tuple[SchemaField, ...], version: int) -> Iterator[SchemaField]:
    """Yield the fields of a version in the order of the wire: tagged ones last."""
    held = [field for field in fields if field.versions[0] <= version <= field.versions[1]]
    yield from (field for field in held if not _tagged(field, version))
    yield from sorted((field for field in held if _tagged(field, version)), key=lambda field: field.tag or 0)


def _all(fields: tuple[SchemaField, ...]) -> Iterator[SchemaField]:
    for field in fields:
        yield field
        yield from _all(field.fields)


def _tagged(field: SchemaField, version: int) -> bool:
    return field.tagged is not None and field.tagged[0] <= version <= field.tagged[1]


def _completed(fields: tuple[SchemaField, ...], version: int, given: Tree) -> Tree:
    tree = {}
    for each in present(fields, version):
        value = given.get(each.name)
        if value is None and not _tagged(each, version) and not _nullable(each, version):
            value = {"struct": {}, "string": "", "bytes": b"", "uuid": bytes(16)}.get(each.type, 0)
            value = [] if each.type.startswith("[]") else value
        if isinstance(value, dict):
            value = _completed(each.fields, version, value)
        elif isinstance(value, list) and each.fields:
            value = [_completed(each.fields, version, element) for element in value]
        tree[each.name] = value
    return tree


def _nullable(each: SchemaField, version: int) -> bool:
    return each.nullable is not None and each.nullable[0] <= version <= each.nullable[1]


def _generated(fields: tuple[SchemaField, ...], version: int, chosen: Random) -> Tree:
    return {field.name: _value(field, version, chosen) for field in present(fields, version)}


def _value(field: SchemaField, version: int, chosen: Random) -> Any:
    if _nullable(field, version) and chosen.random() < 0.2:
        return None
    if field.type.startswith("[]"):
        count = chosen.choice(COUNTS)
        return [_single(field, field.type[2:], version, chosen) for _ in range(count)]
    return _single(field, field.type, version, chosen)


def _single(field: SchemaField, kind: str, version: int, chosen: Random) -> Any:
    if kind == "struct":
        return _generated(field.fields, version, chosen)
    if kind == "string":
        return f"{field.name}-{chosen.randrange(1000)}" + "é" * chosen.choice((0, 0, 1, 70))
    if kind == "bytes":
        return chosen.randbytes(chosen.choice((0, 1, 30, 200)))
    if kind == "uuid":
        return chosen.choice((bytes(16), *[chosen.randbytes(16)] * 3))
    if kind == "records":
        return _records(chosen)
    if kind == "bool":
        return chosen.random() < 0.5
    if kind == "float64":
        return chosen.random()
    if field.name.endswith("ErrorCode"):
        return chosen.choice((0, 0, 3, 6, 15, 70, 100, -1))
    bits = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "int64": 41}[kind]
    return chosen.choice((0, 1, chosen.getrandbits(bits), chosen.getrandbits(bits // 2)))


def _records(chosen: Random) -> Records:
    if chosen.random() < 0.2:
        return Records(b"")
    magic = chosen.choice((0, 1, 2, 2))
    status = chosen.choice(list(SetStatus))
    producer = (chosen.getrandbits(40), chosen.getrandbits(15)) if magic == 2 else (-1, -1)
    offsets = chosen.getrandbits(40), chosen.getrandbits(41)
    size = chosen.choice((70, 500, 20_000))
    return Records(bytes(size), chosen.getrandbits(20), 2, magic, 3, status, chosen.randrange(4), *producer, *offsets)


def _struct(fields: tuple[SchemaField, ...], tree: Tree, form: _Form) -> bytes:
    parts, tags = [], []
    for each in present(fields, form.version):
        value, tagged = tree[each.name], _tagged(each, form.version)
        if tagged and value is None:  # which is what a tag that is left out means
            continue
        written = _field(each, value, form)
        if tagged:
            size = len(_field(each, value, replace(form, leaves=False, hidden=frozenset(), emptied=frozenset())))
            tags.append(uvarint(each.tag or 0) + uvarint(size) + written)
        else:
            parts.append(written)
    if form.flexible:
        parts.append(form.tags(tags))
    return b"".join(parts)


def _field(each: SchemaField, value: Any, form: _Form) -> bytes:
    if each.type != "struct":
        return _written(each, each.type, value, form)
    mark = b""
    if _nullable(each, form.version):
        mark = b"\xff" if value is None else b"\x01"
    return mark + (b"" if value is None else _written(each, each.type, value, form))


def _written(each: SchemaField, kind: str, value: Any, form: _Form) -> bytes:
    flexible = form.flexible
    if kind.startswith("[]"):
        if value is None:
            return b"\0" if flexible else struct.pack(">i", -1)
        count = uvarint(len(value) + 1) if flexible else struct.pack(">i", len(value))
        return count + b"".join(_written(each, kind[2:], one, form) for one in value)
    if kind == "struct":
        return _struct(each.fields, value, form)
    if kind == "uuid":
        return bytes(value)
    if kind == "string":
        written = _text("" if each.name in form.emptied else value, compact=flexible)
        return written[: -len(value.encode())] if value and each.name in form.hidden else written
    if kind in ("bytes", "records"):
        if value is None:
            return b"\0" if flexible else struct.pack(">i", -1)
        data = value.data if kind == "records" else value
        length = uvarint(len(data) + 1) if flexible else struct.pack(">i", len(data))
        if kind == "bytes" and form.leaves:
            return length
        return length + bytes(value.stub if kind == "records" and form.leaves and data else data)
    return struct.pack(f">{_FORMATS[kind]}", value)


def _text(value: str | None, *, compact: bool) -> bytes:
    if value is None:
        return b"\0" if compact else b"\xff\xff"
    encoded = value.encode()
    return (uvarint(len(encoded) + 1) if compact else struct.pack(">h", len(encoded))) + encoded


def uvarint(value: int) -> bytes:
    """Return the bytes of an unsigned varint."""
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])
