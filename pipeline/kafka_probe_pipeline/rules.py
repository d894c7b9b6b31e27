"""The rules by which a cause is named: of those that hold, the first one counts.

Client ids, topics and ports name no cause. This room never touches Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

End = Literal["client", "broker"]
OTHER: dict[End, End] = {"client": "broker", "broker": "client"}
SIDE: dict[End, str] = {"client": "connecting", "broker": "accepting"}


@dataclass(frozen=True, slots=True)
class Rule:
    """If `holds`, the cause is named by the word of the end `by`; `words` are the evidence.

    Both are written in `FACTS` of `client` and `broker`: as SQL, and in braces. `rests_on` is the end whose agent would
    have told of what speaks against the rule; None: nothing could.
    """

    cause: str
    by: End
    holds: str
    words: str
    rests_on: End | None = None


def of_each(make: Callable[[End, End], Rule], ends: Iterable[End] = ("client", "broker")) -> list[Rule]:
    """The same rule for either end, with the other as second argument."""
    return [make(end, OTHER[end]) for end in ends]


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

CLIENT_FIRST = "client.itself AND NOT broker.itself"
BROKER_FIRST = "broker.itself AND NOT client.itself"

RULES = (
    *of_each(
        lambda end, _: Rule(
            "auth_failure",
            by=end,
            holds=f"{end}.refused",
            words=f"the credentials were refused, error {{{end}.error}}",
        )
    ),
    # What the other end closed after a silence that was not longer, it closed before the RST came.
    *of_each(
        lambda end, other: Rule(
            "middlebox_reset",
            by=end,
            holds=f"{end}.got_reset AND {other}.watched AND NOT {other}.sent_reset "
            f"AND NOT ({other}.itself AND {other}.silence_us <= {end}.silence_us + margin_us)",
            words=f"the {end} received an RST after {{{end}.silence}} of silence that the {other}'s host never sent",
            rests_on=other,
        )
    ),
    *of_each(
        lambda end, other: Rule(
            "middlebox_silent_drop",
            by=end,
            holds=f"{end}.no_answer AND {other}.watched AND NOT {other}.heard_fin AND NOT {other}.sent_reset",
            words=f"what the {end} sent after {{{end}.silence}} of silence was never acknowledged ({{{end}.unacked}} "
            f"bytes, {{{end}.unanswered}} retransmissions), yet the {other} held on",
            rests_on=other,
        )
    ),
    *of_each(
        lambda end, other: Rule(
            "unknown",
            by=end,
            holds=f"{end}.no_answer",
            words=f"what the {end} sent after {{{end}.silence}} of silence was never acknowledged; whether the {other} "
            "was still there is not known",
        )
    ),
    # Before process_exit: a broker that is told to stop may end before it has closed all that it held.
    Rule(
        "broker_shutdown",
        by="broker",
        holds="broker.itself AND broker.stopped_listening",
        words="the broker had stopped listening {broker.since_listening} before",
    ),
    *of_each(
        lambda end, _: Rule(
            "process_exit",
            by=end,
            holds=f"{end}.itself AND {end}.exited",
            words=f"the {end}'s process {{{end}.process}} ended without closing its socket",
        ),
        ends=("broker", "client"),
    ),
    *of_each(
        lambda end, _: Rule(
            "auth_failure",
            by=end,
            holds=f"{end}.itself AND {end}.authenticating",
            words=f"the {end} closed {{{end}.silence}} after {{{end}.api}}",
        )
    ),
    Rule(
        "rejected_request",
        by="broker",
        holds=f"{BROKER_FIRST} AND broker.owed",
        words="the broker closed {broker.silence} after {broker.api} without answering it ({broker.asked} requests "
        "without a response)",
    ),
    Rule(
        "broker_idle_limit",
        by="broker",
        holds=f"{BROKER_FIRST} AND broker.idle",
        words="the broker closed after {broker.silence} of silence, with no request open",
    ),
    Rule(
        "normal",
        by="client",
        holds=f"{CLIENT_FIRST} AND client.ended",
        words="the client closed, and its process {client.process} ended with it",
    ),
    Rule(
        "normal",
        by="client",
        holds=f"{CLIENT_FIRST} AND (client.left OR NOT client.idle)",
        words="the client closed {client.silence} after its last exchange, {client.api}",
    ),
    Rule(
        "unknown",
        by="client",
        holds=f"{CLIENT_FIRST} AND client.asked > 0",
        words="the client gave up on {client.asked} requests, unanswered for {client.silence}",
    ),
    Rule(
        "normal",
        by="client",
        holds=f"{CLIENT_FIRST} AND closed_with_others",
        words="the client closed it together with others, idle for {ages}: it was closed as a whole",
    ),
    Rule(
        "client_idle_limit",
        by="client",
        holds=CLIENT_FIRST,
        words="the client closed after {client.silence} of silence, with no request open",
        rests_on="client",
    ),
    Rule(
        "unknown",
        by="client",
        holds="client.itself AND broker.itself",
        words="both ends closed before either heard of the other",
    ),
    Rule(
        "unknown",
        by="broker",
        holds=BROKER_FIRST,
        words="the broker closed {broker.silence} after the last exchange: too soon for a limit",
    ),
    *of_each(
        lambda end, _: Rule(
            "unknown",
            by=end,
            holds=f"{end}.closed",
            words=f"the {end} heard that the other end closed ({{{end}.how}}) after {{{end}.silence}} of silence; why "
            "is not known here",
        )
    ),
)
