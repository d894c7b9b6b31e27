"""Declares the `topics` event: names of topic ids."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kafka_probe.events.shared_fields import KIND, TOPIC_ID, Origin, Stamped


class NamedTopic(TypedDict):
    """A topic id and its name."""

    topic: Annotated[str, "topic name"]
    topic_id: Annotated[str, f"{TOPIC_ID}; its name changes only if a broker's file contradicts a message"]


class TopicsEvent(Origin, Stamped):
    """The topic ids whose names the agent learned in an interval."""

    kind: Annotated[Literal["topics"], KIND]
    topics: Annotated[list[NamedTopic], "ids whose names this agent learned, from messages or from a broker's files"]
