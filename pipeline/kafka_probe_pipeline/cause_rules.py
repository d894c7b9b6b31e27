"""Lists the rules that name a cause: of those that hold, the first one counts.

Client ids, topics and ports name no cause. This module never touches Spark.

A new cause has an entry in `CAUSES` and rules in `RULES`, before all rules that also hold for it but say less;
`rests_on` names the end whose agent could report a fact against the rule. A fact that it needs is a property of
`evidence.End`, of a field in the agent's `events/lifecycle.py`. A cause of idle connections is also in
`incidents.IDLE_CAUSES` and `alerts.IDLE_TEXTS`. `remedies` lists what to change; tests/pipeline/test_cause_rules.py has
its bounds, and tests/programs/verdicts an injection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from kafka_probe_pipeline.evidence import SECOND_US, End, Side


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause that is named if `holds` is true of the end `by` and the other end.

    words: the evidence, with facts of `end` and `other` in braces. rests_on: the end whose agent would have reported
    facts against the rule; None: there are none.
    """

    cause: str
    by: Side
    holds: Callable[[End, End], bool]
    words: str
    rests_on: Literal["end", "other"] | None = None


def of_each(
    cause: str,
    holds: Callable[[End, End], bool],
    words: str,
    rests_on: Literal["end", "other"] | None = None,
    ends: Iterable[Side] = ("client", "server"),
) -> list[Rule]:
    """Return the same rule for either end."""
    return [Rule(cause, end, holds, words, rests_on) for end in ends]


# What can be the cause, and which evidence names it.
CAUSES = {
    "client_idle_limit": "the client closed an idle connection: `connections.max.idle.ms` of the client",
    "broker_idle_limit": "the broker closed an idle connection: `connections.max.idle.ms` of the broker",
    "middlebox_reset": "one end received an RST that neither the other end's socket nor its host sent: a device "
    "between them had dropped the state of the idle connection",
    "middlebox_silent_drop": "packets that one end sent after a silence were never acknowledged, although the other "
    "end kept the connection open: a device between them dropped the packets",
    "rejected_request": "the broker closed right after a request, without a response: for instance a batch above its "
    "limit with acks=0, or a version that it does not support",
    "auth_failure": "one end closed during the authentication, or the broker refused the credentials",
    "process_exit": "the process of one end was killed, or exited without closing its connections",
    "broker_shutdown": "the broker closed after it had closed its listening socket",
    "normal": "the client closed while it was active, together with other connections, or as its process exited",
    "unknown": "the evidence shows no cause; the sentence states what is known",
}


def first(end: End, other: End) -> bool:
    """Return True if the end closed, and the other did not by itself."""
    return end.itself and (not other.itself or sent_close_notify(end, other))


def sent_close_notify(end: End, other: End) -> bool:
    """Return True if the other end's last received payload was TLS's close_notify, no matter which FIN came first.

    It was not data for this end, which had been silent for far longer.
    """
    return other.tls_received_idle_us is not None and end.silence_us > 2 * other.tls_received_idle_us


def reset_between(end: End, other: End) -> bool:
    """Return True if an RST came that the other end's host never sent.

    False if the other end closed by itself after a silence that was not longer: then it closed before the RST came.
    """
    margin_us = end.limits.clock_margin * SECOND_US
    before = other.itself and other.silence_us <= end.silence_us + margin_us
    return end.got_reset and other.watched and not other.sent_reset and not before


RULES = (
    *of_each("auth_failure", lambda end, _: end.refused, "the broker refused the credentials with error {end.error}"),
    *of_each(
        "middlebox_reset",
        reset_between,
        "after {end.silence} of silence the {end.name} received an RST that the {other.name}'s host never sent",
        rests_on="other",
    ),
    *of_each(
        "middlebox_silent_drop",
        lambda end, other: end.no_answer and other.watched and not other.received_fin and not other.sent_reset,
        "after {end.silence} of silence, packets from the {end.name} were never acknowledged ({end.unacked} bytes, "
        "{end.unanswered} retransmissions), although the {other.name} kept the connection open",
        rests_on="other",
    ),
    *of_each(
        "unknown",
        lambda end, _: end.no_answer,
        "after {end.silence} of silence, packets from the {end.name} were never acknowledged; it is unknown whether "
        "the {other.name} kept the connection open",
    ),
    # Before process_exit: a broker that shuts down may exit before it has closed all its connections.
    Rule(
        "broker_shutdown",
        "server",
        lambda end, _: end.itself and end.stopped_listening,
        "the broker closed the connection {end.since_listening} after its listening socket",
    ),
    *of_each(
        "process_exit",
        lambda end, _: end.itself and end.exited,
        "the {end.name}'s process {end.process} exited without closing its socket",
        ends=("server", "client"),
    ),
    *of_each(
        "auth_failure",
        lambda end, _: end.itself and end.authenticating,
        "the {end.name} closed {end.silence} after {end.api}, during the authentication",
    ),
    Rule(
        "rejected_request",
        "server",
        lambda end, other: first(end, other) and end.owed,
        "the broker closed {end.silence} after {end.request}, without a response ({end.asked} requests in flight)",
    ),
    Rule(
        "broker_idle_limit",
        "server",
        lambda end, other: first(end, other) and end.idle,
        "the broker closed after {end.silence} of silence, without a request in flight",
    ),
    Rule(
        "unknown",
        "client",
        lambda end, other: first(end, other) and end.unread and not other.watched,
        "the client closed {end.silence} after its last exchange; the last TLS record that it received may have been a "
        "close_notify",
    ),
    Rule(
        "normal",
        "client",
        lambda end, other: first(end, other) and end.ended,
        "the client closed, and its process {end.process} exited right after",
    ),
    Rule(
        "normal",
        "client",
        lambda end, other: first(end, other) and (end.left or not end.idle),
        "the client closed {end.silence} after its last exchange ({end.api})",
    ),
    Rule(
        "unknown",
        "client",
        lambda end, other: first(end, other) and end.asked > 0,
        "the client closed with {end.asked} requests in flight, after {end.silence} without a response",
    ),
    Rule(
        "normal",
        "client",
        lambda end, other: first(end, other) and end.with_others and other.watched,
        "the client closed it together with other connections, idle for {end.silences}: all of the client was closed",
    ),
    Rule(
        "unknown",
        "client",
        lambda end, other: first(end, other) and end.with_others,
        "the client closed it together with other connections, idle for {end.silences}: all of the client was closed, "
        "or the broker was unreachable",
    ),
    Rule(
        "client_idle_limit",
        "client",
        first,
        "the client closed after {end.silence} of silence, without a request in flight",
        rests_on="end",
    ),
    Rule(
        "unknown",
        "client",
        lambda end, other: end.itself and other.itself,
        "both ends closed before either received the other's FIN or RST",
    ),
    Rule(
        "unknown",
        "server",
        first,
        "the broker closed {end.silence} after its last exchange, too soon for an idle limit",
    ),
    *of_each(
        "unknown",
        lambda end, _: end.closed,
        "the {end.name} received the other end's close ({end.how}) after {end.silence} of silence; its reason is "
        "unknown",
    ),
)
