"""Formats storms as alerts: as sentences, and as JSON for Kafka and Alertmanager.

An alert contains the cause, the number and share of connections, the idle age, the most affected workloads, the
evidence of both ends, and which setting to change to what. `alertmanager` and `messages` deliver it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row

from kafka_probe.text import printable
from kafka_probe_pipeline.incidents import CRASHES, IDLE, RESTART
from kafka_probe_pipeline.remedies import REMEDIES, remedy
from kafka_probe_pipeline.scopes import ALL_CONNECTIONS
from kafka_probe_pipeline.storms import RESOLVED

NAMES = {
    IDLE: "KafkaIdleDisconnectStorm",
    RESTART: "KafkaBrokerRestart",
    CRASHES: "KafkaClientCrashLoop",
}
OTHER_NAME = "KafkaReconnectStorm"
EVIDENCE_LIMIT = 1000  # characters: a sentence of each end, with the names of processes


@dataclass(frozen=True, slots=True)
class Text:
    """The text and the remedy of an alert, with the names of a storm's columns in braces."""

    what: str
    remedy: str


# The causes of idle connections; `remedies` has what to change.
IDLE_TEXTS = {
    "client_idle_limit": "the clients closed them by their own limit on idle connections",
    "broker_idle_limit": "the brokers closed them by their limit on idle connections",
    "middlebox_reset": "a device between clients and brokers had dropped their state and answered with RST",
    "middlebox_silent_drop": "a device between clients and brokers had dropped their state and drops their packets",
}
TEXTS = {
    RESTART: Text(
        what="{count} connections closed because broker {subject} stopped",
        remedy=REMEDIES["broker_shutdown"],
    ),
    CRASHES: Text(
        what="{count} connections closed because processes of {subject} exited without closing them",
        remedy="Find out why these processes exit: check their logs, exit status and memory limit.",
    ),
}
OTHER_TEXT = Text(
    what="{count} connections of {subject} closed shortly after they opened",
    remedy="See the verdicts for the cause ({cause}); make the clients reuse connections, and wait longer before they "
    "retry.",
)


@dataclass(frozen=True, slots=True)
class Alert:
    """A storm as it is now. `id` is the same from its start to its end."""

    id: str
    change: str | None
    resolved: bool
    summary: str
    remedy: str
    opened_us: int
    resolved_us: int | None
    storm: dict[str, Any]

    def message(self) -> str:
        """Return the value of its record in the topic of alerts."""
        times = {name: _time(self.storm[f"{name}_us"]) for name in ("opened", "updated", "resolved")}
        kept = ("id", "kind", "subject", "state", "change", "cause", "count", "population", "share", "scope")
        details = ("idle_us", "both_ends", "evidence", "workloads", "brokers", "networks")
        fields = {name: self.storm[name] for name in (*kept, *details)}
        return json.dumps({**fields, **times, "summary": self.summary, "remedy": self.remedy})

    def labels(self) -> dict[str, str]:
        """Return the labels that identify the alert: nothing that changes while it goes on."""
        kind = self.storm["kind"]
        return {
            "alertname": NAMES.get(kind, OTHER_NAME),
            "severity": "warning" if kind == IDLE else "info",
            "kind": kind,
            "subject": printable(self.storm["subject"] or "unknown"),
            "storm": self.id,
        }

    def annotations(self) -> dict[str, str]:
        """Return its annotations in Alertmanager: sentences and lists of names."""
        hit = {name: _listed(self.storm[name]) for name in ("workloads", "brokers", "networks")}
        evidence = printable(self.storm["evidence"] or "", EVIDENCE_LIMIT)
        texts = {"summary": self.summary, "remedy": self.remedy, "evidence": evidence, **hit}
        return {name: text for name, text in texts.items() if text}


def alert(row: Row) -> Alert:
    """Return the alert of a row of `storms`."""
    storm = row.asDict(recursive=True)
    what, remedy = _texts(storm)
    share = storm["share"] or 0
    percent = "less than 1 %" if share < 0.01 else f"{100 * share:.0f} %"
    every, scope = storm["population"], storm["scope"]
    among = f"all {every} connections" if scope == ALL_CONNECTIONS else f"the {every} connections of {printable(scope)}"
    ends = f"both ends of {storm['both_ends']} were watched"
    hit = _listed(storm["workloads"]) or "unknown"
    return Alert(
        id=storm["id"],
        change=storm["change"],
        resolved=storm["state"] == RESOLVED,
        summary=f"{what}; {percent} of {among}; {ends}; most affected: {hit}",
        remedy=remedy,
        opened_us=storm["opened_us"],
        resolved_us=storm["resolved_us"],
        storm=storm,
    )


def _texts(storm: dict[str, Any]) -> tuple[str, str]:
    if storm["kind"] != IDLE:
        text = TEXTS.get(storm["kind"], OTHER_TEXT)
        named = storm | {"subject": printable(storm["subject"])}
        return text.what.format(**named), text.remedy.format(**named)
    cause, idle_us = storm["subject"], storm["idle_us"]
    what = f"{storm['count']} connections closed after {idle_us / 1e6:.1f} s of silence ({cause}): {IDLE_TEXTS[cause]}"
    return what, remedy(cause, idle_us)


def _listed(hits: list[dict[str, Any]] | None) -> str:
    return ", ".join(f"{printable(hit['name'])} ({hit['count']})" for hit in hits or ())


def _time(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
