"""The rules by which a cause is named: of those that hold, the first one counts.

Client ids, topics and ports name no cause. This module never touches Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from kafka_probe_pipeline.evidence import SECOND_US, End

Name = Literal["client", "broker"]


@dataclass(frozen=True, slots=True)
class Rule:
    """If it `holds` of the end `by` and the other end, the cause is named by the word of that end.

    words: the evidence, with facts of `end` and `other` in braces. rests_on: the end whose agent would have told of
    what speaks against the rule; None: nothing could.
    """

    cause: str
    by: Name
    holds: Callable[[End, End], bool]
    words: str
    rests_on: Literal["end", "other"] | None = None


def of_each(
    cause: str,
    holds: Callable[[End, End], bool],
    words: str,
    rests_on: Literal["end", "other"] | None = None,
    ends: Iterable[Name] = ("client", "broker"),
) -> list[Rule]:
    """The same rule for either end."""
    return [Rule(cause, end, holds, words, rests_on) for end in ends]


# What can be the cause, and which evidence names it.
CAUSES = {
    "client_idle_limit": "the client closed after a silence: `connections.max.idle.ms` of the client",
    "broker_idle_limit": "the broker closed after a silence: `connections.max.idle.ms` of the broker",
    "middlebox_reset": "one end received an RST that neither the other socket nor its host sent: what stands between "
    "them had forgotten the connection",
    "middlebox_silent_drop": "what one end sent after a silence was never acknowledged, while the other still held the "
    "connection",
    "rejected_request": "the broker closed right after a request without answering it: a batch above its limit with "
    "acks=0, a version that it does not have",
    "auth_failure": "one end closed during the authentication, or the credentials were refused",
    "process_exit": "the process of one end was killed, or ended without closing its connections",
    "broker_shutdown": "the broker closed after it had stopped to listen",
    "normal": "the client closed in the middle of its work, with others, or because it ended",
    "unknown": "the evidence tells no cause; the sentence says what is known",
}


def first(end: End, other: End) -> bool:
    """The end closed, and the other did not by itself."""
    return end.itself and (not other.itself or said_goodbye(end, other))


def said_goodbye(end: End, other: End) -> bool:
    """What the other received last was no data to the end, which had been silent for far longer: it was the goodbye
    of TLS, whoever's FIN came first."""
    return other.heard_us is not None and end.silence_us > 2 * other.heard_us


def reset_between(end: End, other: End) -> bool:
    """An RST came that the other end's host never sent.

    What the other end closed after a silence that was not longer, it closed before the RST came.
    """
    margin_us = end.config.clock_margin * SECOND_US
    before = other.itself and other.silence_us <= end.silence_us + margin_us
    return end.got_reset and other.watched and not other.sent_reset and not before


RULES = (
    *of_each("auth_failure", lambda end, _: end.refused, "the credentials were refused, error {end.error}"),
    *of_each(
        "middlebox_reset",
        reset_between,
        "the {end.name} received an RST after {end.silence} of silence that the {other.name}'s host never sent",
        rests_on="other",
    ),
    *of_each(
        "middlebox_silent_drop",
        lambda end, other: end.no_answer and other.watched and not other.heard_fin and not other.sent_reset,
        "what the {end.name} sent after {end.silence} of silence was never acknowledged ({end.unacked} bytes, "
        "{end.unanswered} retransmissions), yet the {other.name} held on",
        rests_on="other",
    ),
    *of_each(
        "unknown",
        lambda end, _: end.no_answer,
        "what the {end.name} sent after {end.silence} of silence was never acknowledged; whether the {other.name} was "
        "still there is not known",
    ),
    # Before process_exit: a broker that is told to stop may end before it has closed all that it held.
    Rule(
        "broker_shutdown",
        "broker",
        lambda end, _: end.itself and end.stopped_listening,
        "the broker had stopped listening {end.since_listening} before",
    ),
    *of_each(
        "process_exit",
        lambda end, _: end.itself and end.exited,
        "the {end.name}'s process {end.process} ended without closing its socket",
        ends=("broker", "client"),
    ),
    *of_each(
        "auth_failure",
        lambda end, _: end.itself and end.authenticating,
        "the {end.name} closed {end.silence} after {end.api}",
    ),
    Rule(
        "rejected_request",
        "broker",
        lambda end, other: first(end, other) and end.owed,
        "the broker closed {end.silence} after {end.request} without answering it ({end.asked} requests without a "
        "response)",
    ),
    Rule(
        "broker_idle_limit",
        "broker",
        lambda end, other: first(end, other) and end.idle,
        "the broker closed after {end.silence} of silence, with no request open",
    ),
    Rule(
        "unknown",
        "client",
        lambda end, other: first(end, other) and end.unread and not other.watched,
        "the client closed {end.silence} after its last exchange, and what it received by TLS may have been a goodbye",
    ),
    Rule(
        "normal",
        "client",
        lambda end, other: first(end, other) and end.ended,
        "the client closed, and its process {end.process} ended with it",
    ),
    Rule(
        "normal",
        "client",
        lambda end, other: first(end, other) and (end.left or not end.idle),
        "the client closed {end.silence} after its last exchange, {end.api}",
    ),
    Rule(
        "unknown",
        "client",
        lambda end, other: first(end, other) and end.asked > 0,
        "the client gave up on {end.asked} requests, unanswered for {end.silence}",
    ),
    Rule(
        "normal",
        "client",
        lambda end, other: first(end, other) and end.with_others and other.watched,
        "the client closed it together with others, idle for {end.silences}: it was closed as a whole",
    ),
    Rule(
        "unknown",
        "client",
        lambda end, other: first(end, other) and end.with_others,
        "the client closed it together with others, idle for {end.silences}: as a whole, or as the broker was gone",
    ),
    Rule(
        "client_idle_limit",
        "client",
        first,
        "the client closed after {end.silence} of silence, with no request open",
        rests_on="end",
    ),
    Rule(
        "unknown",
        "client",
        lambda end, other: end.itself and other.itself,
        "both ends closed before either heard of the other",
    ),
    Rule("unknown", "broker", first, "the broker closed {end.silence} after the last exchange: too soon for a limit"),
    *of_each(
        "unknown",
        lambda end, _: end.closed,
        "the {end.name} heard that the other end closed ({end.how}) after {end.silence} of silence; why is not known "
        "here",
    ),
)
