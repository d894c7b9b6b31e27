"""Describes a frame in words: what it asks or answers, by the names of Kafka's fields.

Names from the wire are made printable by the caller, once, for the whole line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat
from typing import TypeVar

from kafka_probe.conversations.copied_frames import RESYNC, CopiedFrame
from kafka_probe.events import codec_name
from kafka_probe.protocol.archive_compatibility import rules_with_hash, unknown_rules
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.protocol.facts import Fact, MeasureKind, RecordSet, SetStatus, Status, TopicFacts
from kafka_probe.protocol.schemas import apis

_Shown = TypeVar("_Shown")
# Facts that come in rows of several, such as a broker's id, host and port, and how a row reads.
_ROWS = (
    ((Fact.BROKER_ID, Fact.HOST, Fact.PORT), "broker {} at {}:{}"),
    ((Fact.API_KEY, Fact.MIN_VERSION, Fact.MAX_VERSION), "{} {}-{}"),
)
_LEFT_OUT = {Fact.CLIENT_ID, Fact.ACKS}
_NO_VALUE = ("", -1, None)
_ALL_ACKS = -1
_BYTES = (MeasureKind.RECORD_BYTES, MeasureKind.UNCOUNTED_BYTES)
_NOT_SHOWN = {
    *(MeasureKind.BATCH_PRODUCER_ID, MeasureKind.BATCH_PRODUCER_EPOCH, MeasureKind.BATCHES),
    *(MeasureKind.REASON_BYTES, MeasureKind.HIDDEN_BYTES),
}
_MOST_ITEMS, _MOST_ITEMS_VERBOSE = 8, 256  # of a list


def words(frame: CopiedFrame, *, verbose: bool = False) -> str:
    """Return what a frame contains, in one line: errors, values, and partitions with theirs.

    Of each list it has the first 8 items, if verbose the first 256, and the number of the others.
    """
    most = _MOST_ITEMS_VERBOSE if verbose else _MOST_ITEMS
    values = ", ".join(_values(frame, most))
    parts = [*_state(frame), *_shortened(_errors(frame), most), values, *_topics(frame, most)]
    return "; ".join(part for part in parts if part)


def with_contents(title: str, contents: str) -> str:
    """Return a title, followed by the contents if there are any."""
    return f"{title}: {contents}" if contents else title


def _values(frame: CopiedFrame, most: int) -> Iterator[str]:
    values = list(frame.facts.values)
    for kinds, form in _ROWS:
        columns = [[value for kind, value in values if kind is wanted] for wanted in kinds]
        if len({len(column) for column in columns}) == 1 and columns[0]:
            rows = (
                form.format(_name(kinds[0], first), *others)
                for first, *others in zip(*columns, strict=True)
                if any(value not in _NO_VALUE for value in (first, *others))
            )
            yield from _shortened(rows, most)
            values = [(kind, value) for kind, value in values if kind not in kinds]
    counts = Counter[Fact]()
    for kind, value in values:
        if kind not in _LEFT_OUT and value not in _NO_VALUE:
            counts[kind] += 1
            if counts[kind] <= most:
                yield f"{kind.value} {value}"
    if further := sum(max(0, count - most) for count in counts.values()):
        yield f"{further} more values"
    if frame.facts.acks is not None:
        yield f"acks {'all' if frame.facts.acks == _ALL_ACKS else frame.facts.acks}"
    for measure, value in frame.measures:
        if measure.topic >= 0 or measure.kind in _NOT_SHOWN:
            continue
        if value or measure.kind is not MeasureKind.THROTTLE_MS:
            yield f"{measure.kind.value} {value}{' ms' if measure.kind is MeasureKind.THROTTLE_MS else ''}"


def _topics(frame: CopiedFrame, most: int) -> Iterator[str]:
    facts = frame.facts
    numbers: dict[tuple[int, int], list[str]] = {}
    sizes: dict[tuple[int, int], int] = {}
    first_offsets: dict[tuple[int, int], int] = {}
    for measure, value in frame.measures:
        at = measure.topic, measure.partition
        if measure.kind in _BYTES:
            sizes[at] = value
        elif measure.kind is MeasureKind.BATCH_FIRST_OFFSET:
            first_offsets[at] = value
        elif measure.kind is MeasureKind.BATCH_LAST_OFFSET:
            if first_offsets[at] >= 0:
                numbers.setdefault(at, []).append(f"offsets {first_offsets[at]} to {value}")
        elif measure.topic >= 0 and measure.kind not in _NOT_SHOWN and value != -1:
            numbers.setdefault(at, []).append(f"{measure.kind.value} {value}")
    sets = {(one.topic, one.partition): one for one in facts.record_sets}

    def described(at: tuple[int, int | None]) -> str:
        index, partition = at
        topic = facts.topics[index]
        errors = dict(topic.errors)
        if partition is not None:
            name = f"{_topic_name(topic)}[{partition}]"
            return with_contents(name, _partition((index, partition), numbers, sizes, sets, errors))
        whole = f" ({ERROR_NAMES.get(errors[-1], errors[-1])})" if -1 in errors else ""
        return f"topic {_topic_name(topic)}{whole}"

    places = (zip(repeat(index), topic.partitions or (None,)) for index, topic in enumerate(facts.topics))
    yield from _shortened(chain.from_iterable(places), most, described)
    yield from _shortened((f"no longer {_topic_name(topic)}" for topic in facts.forgotten), most)


def _partition(
    at: tuple[int, int],
    numbers: dict[tuple[int, int], list[str]],
    sizes: dict[tuple[int, int], int],
    sets: dict[tuple[int, int], RecordSet],
    errors: dict[int, int],
) -> str:
    parts = [ERROR_NAMES.get(errors[at[1]], str(errors[at[1]]))] if at[1] in errors else []
    parts += numbers.get(at, [])
    if at in sizes:
        one = sets.get(at)
        parts.append(f"{sizes[at]} bytes of records")
        if one is None or one.status == SetStatus.UNREADABLE:
            parts.append("records not counted")
        else:
            parts += [f"codec {codec_name(one.codec)}", *(["transactional"] if one.transactional else [])]
    return ", ".join(parts)


def _errors(frame: CopiedFrame) -> Iterator[str]:
    of_topics = {code for topic in frame.facts.topics for _, code in topic.errors}
    for code, count in frame.facts.errors:
        if code not in of_topics:
            yield ERROR_NAMES.get(code, str(code)) + (f" {count} times" if count > 1 else "")


def _state(frame: CopiedFrame) -> Iterator[str]:
    if frame.first.flags & RESYNC:
        yield "earlier frames were not captured"
    if rules_with_hash(frame.first.copy_rules) is None:
        yield unknown_rules(frame.first.copy_rules)
        return
    if not frame.whole:
        yield "a part of the frame is missing"
    match frame.facts.status:
        case Status.HEADER_ONLY:
            yield "body not copied"
        case Status.TRUNCATED if frame.whole:
            yield "the rest was not copied"
        case Status.MALFORMED:
            yield "malformed"
        case Status.UNKNOWN_API | Status.UNKNOWN_VERSION:
            yield "unknown version"


def _shortened(items: Iterable[_Shown], most: int, form: Callable[[_Shown], str] = str) -> Iterator[str]:
    """Yield the first items as texts, and the number of the others."""
    every = iter(items)
    yield from map(form, islice(every, most))
    if further := sum(1 for _ in every):
        yield f"{further} more"


def _name(kind: Fact, value: str | int) -> str:
    if kind is Fact.API_KEY and isinstance(value, int):
        api = apis().get(value)
        return api.name if api else f"API {value}"
    return str(value)


def _topic_name(topic: TopicFacts) -> str:
    return topic.name or topic.topic_id or "(unnamed)"
