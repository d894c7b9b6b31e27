"""Derives the expected facts of a message from the names and values of its tree, not from its bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kafka_probe.protocol.facts import Fact, Facts, MeasureKind, RecordSet, SetStatus, Status, TopicFacts
from kafka_probe.protocol.kernel_allow_list import HIDDEN
from kafka_probe.protocol.roles import Part, Scope, role_of, scopes_inside
from kafka_probe.protocol.schemas import SchemaField
from tests.builders.trees import CLIENT_ID, Message, Records, Tree, present

Value = tuple[MeasureKind, int, int, int]


def expected(message: Message) -> Expected:
    found = Expected(HIDDEN.get(message.api.name, frozenset()))
    if not message.response and message.header:
        found.values.append((Fact.CLIENT_ID, CLIENT_ID))
    found.struct(message.fields, message.tree, message.version, message.api.name, Scope.FRAME)
    return found


@dataclass
class Expected:
    """The expected facts and measures, in the order of the wire.

    hidden: names of strings of which only the length leaves the kernel.
    """

    hidden: frozenset[str]
    values: list[tuple[Fact, str | int]] = field(default_factory=list)
    errors: Counter[int] = field(default_factory=Counter)
    topics: list[TopicFacts] = field(default_factory=list)
    forgotten: list[TopicFacts] = field(default_factory=list)
    record_sets: list[RecordSet] = field(default_factory=list)
    measured: list[Value] = field(default_factory=list)
    _partition: int = -1

    def facts(self, message: Message) -> Facts:
        return Facts(
            message.response,
            message.api.key,
            message.version,
            Status.COMPLETE,
            None,
            tuple(self.values),
            tuple(sorted(self.errors.items())),
            tuple(self.topics),
            tuple(self.forgotten),
            tuple(self.record_sets),
        )

    def struct(self, fields: tuple[SchemaField, ...], tree: Tree, version: int, parent: str, scope: Scope) -> None:
        for each in present(fields, version):
            value = tree[each.name]
            members = frozenset(member.name for member in present(each.fields, version))
            elements = value if isinstance(value, list) else [value]
            for element in elements:
                if each.type.removeprefix("[]") == "bytes" or each.name in self.hidden:
                    text = element.encode() if isinstance(element, str) else element
                    kind = MeasureKind.REASON_BYTES if each.name == "Reason" else MeasureKind.HIDDEN_BYTES
                    self._measure(kind, scope, -1 if text is None else len(text))
                elif isinstance(element, dict):
                    opens = scopes_inside(each.name, members, scope)
                    self._enter(opens, element)
                    self.struct(each.fields, element, version, each.name, opens[-1] if opens else scope)
                elif element is not None:
                    self._take(each.name, parent, scope, element)

    def _enter(self, opens: tuple[Scope, ...], tree: Tree) -> None:
        for scope in opens:
            if scope is Scope.TOPIC:
                self.topics.append(TopicFacts(None, None, (), ()))
            elif scope is Scope.FORGOTTEN:
                self.forgotten.append(TopicFacts(None, None, (), ()))
            elif scope is Scope.PARTITION:
                names = ("PartitionIndex", "Partition", "Index", "PartitionId")
                self._partition = next(tree[name] for name in names if name in tree)

    def _take(self, name: str, parent: str, scope: Scope, value: Any) -> None:
        role = role_of(name, parent, scope)
        topics = self.forgotten if scope is Scope.FORGOTTEN else self.topics
        match role:
            case MeasureKind.SESSION_EPOCH:
                self.values.append((Fact.SESSION_EPOCH, min(value, 1)))
                if value > 0:
                    self.measured.append((role, -1, -1, value))
            case MeasureKind():
                self._measure(role, scope, value)
            case Fact():
                self.values.append((role, value.hex() if isinstance(value, bytes) else value))
            case Part.ERROR if value:
                self.errors[value] += 1
                if scope is not Scope.FRAME:
                    partition = self._partition if scope is Scope.PARTITION else -1
                    topics[-1] = topics[-1]._replace(errors=(*topics[-1].errors, (partition, value)))
            case Part.TOPIC:
                topics.append(TopicFacts(value, None, (), ()))
            case Part.TOPIC_NAME:
                topics[-1] = topics[-1]._replace(name=value)
            case Part.TOPIC_ID:
                topics[-1] = topics[-1]._replace(topic_id=value.hex() if any(value) else None)
            case Part.PARTITION_INDEX:
                topics[-1] = topics[-1]._replace(partitions=(*topics[-1].partitions, value))
            case Part.RECORDS if value.data:
                self._take_records(value)

    def _measure(self, kind: MeasureKind, scope: Scope, value: int) -> None:
        place = (len(self.topics) - 1, self._partition) if scope is Scope.PARTITION else (-1, -1)
        self.measured.append((kind, *place, value))

    def _take_records(self, value: Records) -> None:
        place = len(self.topics) - 1, self._partition
        transactional, control = bool(value.flags & 1), bool(value.flags & 2)
        self.record_sets.append(RecordSet(*place, value.status, value.magic, value.codec, transactional, control))
        found = [(MeasureKind.RECORD_BYTES, len(value.data))]
        offsets = [
            (MeasureKind.BATCH_FIRST_OFFSET, value.first_offset),
            (MeasureKind.BATCH_LAST_OFFSET, value.last_offset),
        ]
        if value.status in (SetStatus.COUNTED, SetStatus.PARTIAL):
            found += [(MeasureKind.RECORDS, value.records), (MeasureKind.BATCHES, value.batches), *offsets]
            if value.magic == 2:
                found += [
                    (MeasureKind.BATCH_PRODUCER_ID, value.producer_id),
                    (MeasureKind.BATCH_PRODUCER_EPOCH, value.producer_epoch),
                ]
        else:
            found += [*offsets, (MeasureKind.UNCOUNTED_BYTES, len(value.data))]
        self.measured += [(kind, *place, number) for kind, number in found]
