"""Provides readers of whole messages, and checks which facts a part of a frame may give."""

from __future__ import annotations

from kafka_probe.protocol.decoder import Readers, decode
from kafka_probe.protocol.facts import Facts, Shape, Status, TopicFacts
from kafka_probe.protocol.plan import full_plan
from kafka_probe.protocol.reader_compiler import Reader, compiled
from kafka_probe.protocol.schemas import apis
from tests.builders.trees import Message


def shape_of(message: Message, data: bytes, *, copied_all: bool = True) -> Shape:
    """Return the shape of the message's data, or of a part of it."""
    which = message.response, message.api.key, message.version
    return decode(*which, data, copied_all=copied_all, readers=WHOLE).shape()


class WholeWalks(Readers):
    def __missing__(self, which: tuple[bool, int, int]) -> tuple[Reader, Status]:
        response, api_key, version = which
        plan = full_plan(response, apis()[api_key], version)
        reader = self[which] = compiled(plan.steps), plan.done
        return reader


WHOLE = WholeWalks()


def assert_part_of(part: Facts, whole: Facts) -> None:
    """Assert that facts of a cut frame begin like those of the whole one.

    Of its last topic some may be missing.
    """
    assert part.values == whole.values[: len(part.values)]
    assert part.record_sets == whole.record_sets[: len(part.record_sets)]
    counts = dict(whole.errors)
    assert all(count <= counts[code] for code, count in part.errors)
    for part_topics, topics in ((part.topics, whole.topics), (part.forgotten, whole.forgotten)):
        assert part_topics[:-1] == topics[: max(len(part_topics) - 1, 0)]
        for last in part_topics[-1:]:
            assert_part_of_topic(last, topics[len(part_topics) - 1])


def assert_part_of_topic(part: TopicFacts, whole: TopicFacts) -> None:
    assert part.name in (None, whole.name)
    assert part.topic_id in (None, whole.topic_id)
    assert part.partitions == whole.partitions[: len(part.partitions)]
    assert part.errors == whole.errors[: len(part.errors)]
