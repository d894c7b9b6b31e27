"""Gathers the facts and measures of one frame while the decoder walks over it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka_probe.protocol.facts import Encoding, Facts, Kind, Measure, Status, TopicFacts
from kafka_probe.protocol.plan import SCALARS, Role

if TYPE_CHECKING:
    from collections.abc import Callable

_GROUP_KEY_TYPE = 0


@dataclass(slots=True)
class _Topic:
    name: str | None = None
    topic_id: str | None = None
    partitions: list[int] = field(default_factory=list)
    errors: list[tuple[int, int]] = field(default_factory=list)

    def facts(self) -> TopicFacts:
        return TopicFacts(self.name, self.topic_id, tuple(self.partitions), tuple(self.errors))


class Collector:
    """Takes values by their role, in the order of the frame; `facts` may be asked for at any point."""

    def __init__(self) -> None:
        self.measures: list[Measure] = []
        self._values: dict[str, Any] = {}
        self._keys: list[str] = []
        self._groups: list[str] = []
        self._errors: Counter[int] = Counter()
        self._topics: list[_Topic] = []
        self._partition: int | None = None
        self._partition_error = 0
        self._has_records = False

    def enter(self, role: Role) -> None:
        """A topic or partition begins."""
        if role is Role.TOPIC:
            self._topics.append(_Topic())
        self._partition, self._partition_error = None, 0

    def note(self, role: Role, value: Any) -> None:
        """A value that all frames of the shape have."""
        if role in SCALARS:
            self._values[role.value] = value
        else:
            _NOTES[role](self, value)

    def measure(self, kind: Kind, offset: int, width: int, encoding: Encoding = Encoding.SIGNED) -> None:
        """A number that each frame of the shape has its own of."""
        topic, partition = -1, -1
        if kind is not Kind.THROTTLE_MS and self._partition is not None:
            topic, partition = len(self._topics) - 1, self._partition
        self._has_records |= kind is Kind.RECORD_BYTES
        self.measures.append(Measure(kind, topic, partition, offset, width, encoding))

    def facts(self, response: bool, api_key: int, api_version: int, status: Status, stopped_at: str | None) -> Facts:
        values = dict(self._values)
        # FindCoordinator 0 knows groups only. A response does not say what its keys are.
        key_type = values.pop(Role.KEY_TYPE.value, _GROUP_KEY_TYPE if api_version == 0 else None)
        keys = self._keys if key_type == _GROUP_KEY_TYPE and not response else []
        topics = self._topics
        if topics and topics[-1] == _Topic():  # the frame ended before it named its last topic
            topics = topics[:-1]
        return Facts(
            response,
            api_key,
            api_version,
            status,
            stopped_at,
            groups=tuple(dict.fromkeys(self._groups + keys)),
            errors=tuple(sorted(self._errors.items())),
            topics=tuple(topic.facts() for topic in topics),
            has_records=self._has_records,
            **values,
        )

    def _topic_alone(self, name: str) -> None:
        self._topics.append(_Topic(name))

    def _topic_name(self, name: str) -> None:
        self._topics[-1].name = name

    def _topic_id(self, raw: bytes) -> None:
        self._topics[-1].topic_id = raw.hex() if any(raw) else None

    def _error(self, code: int) -> None:
        if code:
            self._errors[code] += 1

    def _topic_error(self, code: int) -> None:
        self._error(code)
        if code:
            self._topics[-1].errors.append((-1, code))

    def _partition_index(self, index: int) -> None:
        self._partition = index
        self._topics[-1].partitions.append(index)
        if self._partition_error:
            self._topics[-1].errors.append((index, self._partition_error))

    def _partition_code(self, code: int) -> None:
        self._error(code)
        if self._partition is None:  # Metadata names the error before the partition
            self._partition_error = code
        elif code:
            self._topics[-1].errors.append((self._partition, code))

    def _key(self, key: str) -> None:
        self._keys.append(key)

    def _group(self, group: str) -> None:
        self._groups.append(group)


_NOTES: dict[Role, Callable[[Collector, Any], None]] = {
    Role.KEY: Collector._key,
    Role.GROUP: Collector._group,
    Role.ERROR: Collector._error,
    Role.TOPIC: Collector._topic_alone,
    Role.TOPIC_NAME: Collector._topic_name,
    Role.TOPIC_ID: Collector._topic_id,
    Role.TOPIC_ERROR: Collector._topic_error,
    Role.PARTITION_INDEX: Collector._partition_index,
    Role.PARTITION_ERROR: Collector._partition_code,
}
