"""Makes the tables that the demo prints and checks: traffic by topic, and the clients behind a broker's addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.lab.clients import RunningClient
from tests.lab.product import Report

Line = dict[str, Any]

TRAFFIC_COLUMNS = {
    "client id": "client_id",
    "pid": "pid",
    "command": "comm",
    "cgroup": "cgroup",
    "library": "library",
    "api": "api",
    "topic": "topic",
    "requests": "requests",
    "per s": "rate",
    "records": "records",
    "bytes": "bytes",
}
BEHIND_COLUMNS = {
    "as the broker sees it": "seen",
    "client id": "client_id",
    "pid": "pid",
    "command": "comm",
    "cgroup": "cgroup",
    "where it really is": "address",
}
_NUMBERS = {"pid", "requests", "rate", "records", "bytes"}


def traffic(seen: Report, topics: Sequence[str]) -> list[Line]:
    """Return a line per client, API and topic, from the clients' end of the connections: Produce and Fetch."""
    rows: dict[tuple[str, ...], Line] = {}
    who = ("client_id", "pid", "comm", "cgroup", "software_name", "software_version", "api", "topic")
    for part in seen.select(level="topic", side="client"):
        if part["api"] not in ("Produce", "Fetch") or part.get("topic") not in topics:
            continue
        identity = {name: part.get(name) for name in who}
        row = rows.setdefault(tuple(map(str, identity.values())), {**identity, "requests": 0, "records": 0, "bytes": 0})
        for total, column in (("requests", "requests"), ("records", "records"), ("bytes", "record_bytes")):
            row[total] += part.get(column) or 0
    for row in rows.values():
        row["rate"] = round(row["requests"] / seen.seconds(row["client_id"]), 1)
        row["library"] = f"{row['software_name']} {row['software_version']}"
    return [rows[key] for key in sorted(rows)]


def missing_traffic(lines: Iterable[Line], started: Iterable[RunningClient], records: int) -> list[str]:
    """Return what the lines lack about the clients, one sentence each."""
    found = {(line["client_id"], line["api"], line["topic"]): line for line in lines}
    sentences = []
    for one in started:
        client = one.client
        truth = {
            "pid": one.process.pid,
            "comm": client.comm,
            "cgroup": one.cgroup,
            "software_name": client.software_name,
            "software_version": client.software_version,
        }
        for topic in client.topics:
            line = found.get((client.client_id, client.api, topic))
            if line is None:
                sentences.append(f"no line for {client.client_id}, {client.api} {topic}")
                continue
            for name, value in truth.items():
                if line[name] != value:
                    sentences.append(f"{client.client_id}: {name} should be {value}, the table has {line[name]}")
            if line["records"] < records:  # a consumer may fetch some twice
                sentences.append(f"{client.client_id}: {line['records']} records of {topic} instead of {records}")
    return sentences


def behind(verdicts: Iterable[Mapping[str, Any]], started: Sequence[RunningClient]) -> list[Line]:
    """Return the busiest connection of each client by the broker's address for it, with the owner on its own node."""
    busiest: dict[str, Mapping[str, Any]] = {}
    ids = {one.client.client_id for one in started}
    for one in verdicts:
        broker = one["server"]
        if broker and (name := broker["client"]["id"]) in ids:
            before = busiest.get(name)
            if before is None or (broker["requests"] or 0) > (before["server"]["requests"] or 0):
                busiest[name] = one
    return [
        {
            "seen": one["server"]["peer"],
            "client_id": name,
            "address": one["client"]["local"] if one["client"] else None,
            **{fact: (one["client"] or {}).get("workload", {}).get(fact) for fact in ("pid", "comm", "cgroup")},
        }
        for name, one in sorted(busiest.items())
    ]


def missing_behind(lines: Iterable[Line], started: Iterable[RunningClient]) -> list[str]:
    """Return the clients whose owner is missing, one sentence each."""
    found = {line["client_id"]: (line["pid"], line["cgroup"]) for line in lines}
    return [
        f"{name} is process {one.process.pid} in {one.cgroup}, behind the gateway the product has {found.get(name)}"
        for one in started
        if found.get(name := one.client.client_id) != (one.process.pid, one.cgroup)
    ]


def text(lines: Iterable[Line], columns: Mapping[str, str]) -> str:
    """Return the lines as a table, numbers right-aligned; columns: their headings and the names of their values."""
    texts = [dict(zip(columns.values(), columns, strict=True))]
    for line in lines:
        cells = {name: line[name] for name in columns.values()}
        grouped = {n: f"{v:,}" if isinstance(v, int | float) and n != "pid" else str(v) for n, v in cells.items()}
        texts.append(grouped)
    widths = {name: max(len(line[name]) for line in texts) for name in columns.values()}
    return "\n".join(
        "  ".join(
            line[name].rjust(width) if name in _NUMBERS else line[name].ljust(width) for name, width in widths.items()
        ).rstrip()
        for line in texts
    )
