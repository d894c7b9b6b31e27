"""Closes with the cause that their verdict names, and the verdict on a connection without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.connections import CLOSE, END
from kafka_probe_pipeline.evidence import AgentProgress, End, Limits, Side
from kafka_probe_pipeline.judging import Judge
from tests.builders.connection_ends import (
    AUTHENTICATED,
    BRIEF,
    BY_ITSELF,
    EXITED,
    IGNORED,
    RESET,
    Ends,
    closed_first,
    events_of,
    silent,
)
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, SECOND_US, Event, reset_sent

LATE_S = 20  # later than anybody waits for an end that nobody has named
_SEEN_US = NOON_US + LATE_S * SECOND_US
COMPLETE = AgentProgress(
    complete_until=NOON_US + 3 * SECOND_US,
    reported_us=_SEEN_US,
    last_seen_us=_SEEN_US,
    complete_since=0,
    resets_since=0,
)


def connection(*reported: Event) -> dict[str, Any]:
    """Return the row of a connection that Spark makes of the events of its ends."""
    row: dict[str, Any] = {"key": reported[0]["flow_id"], "client": None, "server": None, "verdict": None}
    for event in (event for event in reported if event["kind"] in ("open", "close")):
        end = row[event["side"]] or dict.fromkeys(END.names) | {"last_seen_us": NOON_US}
        end |= {name: event[name] for name in END.names if name in event}
        if event["kind"] == "close":
            times = {"closing_us": event.get("closing_ts"), "ended_us": event.get("ts")}
            end["close"] = {name: event.get(name) for name in CLOSE.names} | times
        row[event["side"]] = end
    return row


def verdict(
    row: Mapping[str, Any],
    *,
    agents: Mapping[str, AgentProgress] | None = None,
    resets: Mapping[tuple[str, str, str], int] | None = None,
    silences_us: tuple[int, int] | None = None,
    at_s: float = LATE_S,
    **settings: object,
) -> dict[str, Any] | None:
    """Return the verdict on the row of a connection; None: it waits. By default the agents' reports are `COMPLETE`.

    silences_us: those of what the client's process closed together; by default it closed nothing else.
    """
    reports = {CLIENT: COMPLETE, BROKER: COMPLETE} if agents is None else agents
    judge = Judge(Limits.of(load(settings)), 0, NOON_US + round(at_s * SECOND_US))

    def end(side: Side, known: Mapping[str, Any] | None) -> End:
        if not known:
            return judge.end(side, None, None, None)
        reset_us = (resets or {}).get((known["agent_id"], known["local"], known["peer"]))
        return judge.end(side, known, reports.get(known["agent_id"]), reset_us)

    client = end("client", row["client"])
    return judge.verdict(client.with_silences(*(silences_us or (client.silence_us,) * 2)), end("server", row["server"]))


@dataclass(frozen=True)
class Case:
    """The reports of the ends, the cause, and words of the evidence."""

    name: str
    ends: Ends
    cause: str
    words: str
    opaque: str | None = None
    resets: bool = False  # the broker's host answers the client with an RST, as it has no such socket any more

    def events(self, number: int) -> list[Event]:
        reported = events_of(self.ends, number, self.opaque)
        if self.resets:
            reported.append(reset_sent(BROKER, number, ts=NOON_US + SECOND_US))
        return reported

    def verdict(self) -> dict[str, Any]:
        """Return the verdict on it without Spark."""
        reported = self.events(1)
        resets = {
            (each["agent_id"], each["local"], each["peer"]): each["ts"] for each in reported if each["kind"] == "reset"
        }
        given = verdict(connection(*reported), resets=resets)
        assert given
        return given

    def check(self, verdict: Mapping[str, Any]) -> None:
        """Fail unless the verdict names the cause, with the words."""
        assert verdict["cause"] == self.cause, verdict["evidence"]
        assert self.words in verdict["evidence"]
        assert verdict["closed_us"] == NOON_US


CLOSE_NOTIFY_US = 60_000

CASES = [
    Case(
        "the broker's limit", closed_first(BROKER, {}), "broker_idle_limit", "the broker closed after 30.0 s of silence"
    ),
    Case(
        "the broker's limit, of its end alone", {BROKER: BY_ITSELF}, "broker_idle_limit", "no agent watched the client"
    ),
    Case(
        "the client's limit", closed_first(CLIENT, {}), "client_idle_limit", "the client closed after 30.0 s of silence"
    ),
    Case(
        "the client's limit, of its end alone", {CLIENT: BY_ITSELF}, "client_idle_limit", "no agent watched the broker"
    ),
    Case("limit of a TLS client", closed_first(CLIENT, {"last_api": None, "in_flight": None}), "client_idle_limit", ""),
    Case(
        "a TLS client that closes as it hears something, of its end alone",
        {CLIENT: BY_ITSELF | {"owner_ended": True, "received_idle_us": 500}},
        "unknown",
        "may have been a close_notify",
        opaque="tls",
    ),
    Case(
        "a TLS client that closes soon after and lives on, of its end alone",
        {CLIENT: BY_ITSELF | {**BRIEF, "received_idle_us": 200_000}},
        "unknown",
        "may have been a close_notify",
        opaque="tls",
    ),
    Case(
        "a TLS client that ends later than that, of its end alone",
        {CLIENT: BY_ITSELF | {"owner_ended": True, "received_idle_us": 500_000}},
        "normal",
        "its process",
        opaque="tls",
    ),
    Case("limit of a TLS broker", closed_first(BROKER, {"last_api": None, "in_flight": None}), "broker_idle_limit", ""),
    Case("kill -9 of the broker", closed_first(BROKER, EXITED), "process_exit", "java[9]"),
    Case(
        "a broker that ends before it has closed all",
        closed_first(BROKER, {**EXITED, "listener_closed_us": 0}),
        "broker_shutdown",
        "after its listening socket",
    ),
    Case("kill -9 of the client", closed_first(CLIENT, EXITED), "process_exit", "the client's process app["),
    Case(
        "kill -9 of a client that had data unread",
        {CLIENT: {**EXITED, "how": "rst_sent"}, BROKER: RESET},
        "process_exit",
        "",
    ),
    Case("both exited at once", {CLIENT: EXITED, BROKER: EXITED}, "process_exit", "the broker's process"),
    Case(
        "the broker stops",
        closed_first(BROKER, {"listener_closed_us": 2 * SECOND_US}),
        "broker_shutdown",
        "2.0 s after its listening socket",
    ),
    Case("no listener since last year", closed_first(BROKER, {"listener_closed_us": 10**13}), "broker_idle_limit", ""),
    Case("no such mechanism", closed_first(BROKER, {"auth_error": 33, **BRIEF}), "auth_failure", "error 33"),
    Case("no such mechanism, of the client alone", {CLIENT: {"auth_error": 33}}, "auth_failure", "error 33"),
    Case("raw tokens refused", closed_first(BROKER, AUTHENTICATED), "auth_failure", "3.0 s after SaslAuthenticate"),
    Case("the client leaves while it authenticates", closed_first(CLIENT, AUTHENTICATED), "auth_failure", ""),
    Case(
        "idle since it authenticated", closed_first(CLIENT, {"last_api": "SaslAuthenticate"}), "client_idle_limit", ""
    ),
    Case(
        "too large a batch with acks=0",
        closed_first(BROKER, {"last_api": "Produce", "last_acks": 0, "last_request_bytes": 2_000_000, **BRIEF}),
        "rejected_request",
        "0.2 s after Produce with acks=0 of 2,000,000 bytes, without a response",
    ),
    Case("idle after acks=0", closed_first(BROKER, {"last_api": "Produce", "last_acks": 0}), "broker_idle_limit", ""),
    Case(
        "a version that the broker lacks",
        {BROKER: {**BY_ITSELF, "in_flight": 1, "how": "rst_sent"}, CLIENT: RESET},
        "rejected_request",
        "1 requests in flight",
    ),
    Case(
        "the broker closes at once, nobody knows why",
        closed_first(BROKER, BRIEF),
        "unknown",
        "too soon for an idle limit",
    ),
    Case(
        "the process of the client ended",
        closed_first(CLIENT, {"owner_ended": True}),
        "normal",
        "exited right after",
    ),
    Case(
        "the client closes in the middle of its work",
        closed_first(CLIENT, BRIEF),
        "normal",
        "0.2 s after its last exchange (Fetch)",
    ),
    Case("the client leaves its group", closed_first(CLIENT, {"last_api": "LeaveGroup"}), "normal", "LeaveGroup"),
    Case(
        "the client gave up",
        closed_first(CLIENT, {"in_flight": 2}),
        "unknown",
        "with 2 requests in flight, after 30.0 s without a response",
    ),
    Case(
        "a firewall resets the client",
        {CLIENT: RESET, BROKER: None},
        "middlebox_reset",
        "that the broker's host never sent",
    ),
    Case(
        "a firewall resets the broker",
        {CLIENT: None, BROKER: RESET},
        "middlebox_reset",
        "that the client's host never sent",
    ),
    Case("a firewall resets both", {CLIENT: RESET, BROKER: RESET}, "middlebox_reset", ""),
    Case(
        "a firewall resets the client, the broker's limit comes later",
        {CLIENT: RESET, BROKER: {**BY_ITSELF, "silence_us": 60 * SECOND_US}},
        "middlebox_reset",
        "",
    ),
    Case(
        "the broker closed before, its host resets",
        {CLIENT: RESET, BROKER: BY_ITSELF},
        "broker_idle_limit",
        "",
        resets=True,
    ),
    Case("the broker resets", {CLIENT: RESET, BROKER: {**BY_ITSELF, "how": "rst_sent"}}, "broker_idle_limit", ""),
    Case("a reset, of the client alone", {CLIENT: RESET}, "unknown", "rst_received"),
    Case(
        "a firewall drops what the client sends",
        {CLIENT: {"how": "timeout"}, BROKER: None},
        "middlebox_silent_drop",
        "the broker kept the connection open",
    ),
    Case(
        "a firewall drops until the client gives up",
        {CLIENT: {**IGNORED, "in_flight": 1}, BROKER: None},
        "middlebox_silent_drop",
        "80 bytes, 3 retransmissions",
    ),
    Case("a firewall drops, each end gives up", {CLIENT: IGNORED, BROKER: BY_ITSELF}, "middlebox_silent_drop", ""),
    Case(
        "a firewall drops what the broker sends",
        {CLIENT: None, BROKER: {"how": "timeout"}},
        "middlebox_silent_drop",
        "the client kept the connection open",
    ),
    Case(
        "no answer, of the client alone",
        {CLIENT: IGNORED},
        "unknown",
        "it is unknown whether the broker kept the connection open",
    ),
    Case("a FIN of the client, of the broker alone", {BROKER: {}}, "unknown", "no agent watched the client"),
    Case("a FIN of the broker, of the client alone", {CLIENT: {}}, "unknown", "no agent watched the broker"),
    Case("each reports the other as first", {CLIENT: {}, BROKER: {}}, "unknown", "received the other end's close"),
    Case("both close at once", {CLIENT: BY_ITSELF, BROKER: BY_ITSELF}, "unknown", "before either received"),
    Case(
        "both close at once, by TLS, and neither sent close_notify",
        {CLIENT: silent(BRIEF["silence_us"]), BROKER: silent(BRIEF["silence_us"])},
        "unknown",
        "before either received",
        opaque="tls",
    ),
    Case(
        "a TLS client sent close_notify, the FINs cross",
        {CLIENT: silent(BRIEF["silence_us"]), BROKER: silent(CLOSE_NOTIFY_US)},
        "normal",
        "the client closed 0.2 s after",
        opaque="tls",
    ),
    Case(
        "a TLS client sent close_notify after a silence, the FINs cross",
        {CLIENT: silent(30 * SECOND_US), BROKER: silent(CLOSE_NOTIFY_US)},
        "client_idle_limit",
        "the client closed after 30.0 s of silence",
        opaque="tls",
    ),
    Case(
        "a TLS broker sent close_notify, the FINs cross",
        {CLIENT: silent(CLOSE_NOTIFY_US), BROKER: silent(30 * SECOND_US)},
        "broker_idle_limit",
        "the broker closed after 30.0 s of silence",
        opaque="tls",
    ),
]
