"""Compares events with the wire: the effect of a flood on the agent and on its reports of honest clients.

Requests of honest clients are counted where they were answered, by a capture of their broker's port. The agent's flows
are compared with them from the last interval before a flood to the last one before the next. Losses have no owner:
therefore a flood that counts its requests is part of a second account, in which losses must explain all requests,
honest or not, that no flow counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.builders.wire import MARKER
from tests.lab.times import Times
from tests.programs.attack.lab import Phase, suspicious
from tests.programs.attack.topic import values

# The sides' names in revisions before `client` and `server`, for BASELINE.
SIDES = {"client": "client", "server": "server", "connecting": "client", "accepting": "server"}
LEAST_PERCENT = 99.0
# Responses right before the end of an interval may count in the next one: those of this time.
UNEXPLAINED_S = 0.1
# Losses that can be of honest requests: the others are only of what a flood makes, as frames that are not Kafka.
EXPLAINING = (
    *("ring_full", "map_full", "gap", "program_skipped", "connection_unknown", "connection_limit"),
    *("frame_incomplete", "frame_limit", "flow_limit", "sink_buffer_full", "sink_refused", "sink_send_failed"),
)
# Losses that can be of requests of anybody. Those of flow_limit are in flows.
EXPLAINING_ALL = ("peer_limited", *(loss for loss in EXPLAINING if loss != "flow_limit"))
LEAST_DONE = 0.9  # of the steps that a flood was to do
LEAST_PER_S = 5.0  # honest requests: with fewer, a percentage means little
OF_HTTP = ("slow_http", "metrics", "large_http")
LONGEST_INTERVAL_S = 7.5  # one and a half times what an interval is
LONGEST_HEALTH_S = 5.0
# Kubernetes' failureThreshold: the server closes a connection where too many are open, also one of a probe.
UNHEALTHY_IN_A_ROW = 3
AGENT_LOG = "agent.log"
_TROUBLE = ("Traceback", " ERROR ", " CRITICAL ")


def _by_side() -> dict[str, Counter[int]]:
    return {"client": Counter(), "server": Counter()}


@dataclass(slots=True)
class Reported:
    """The reports of the agents.

    answered: responses of honest connections, by side and by the end of the interval; answered_all: responses of all
    connections. intervals: end, length and losses so far of each agent's intervals, by node.
    """

    answered: dict[str, Counter[int]] = field(default_factory=_by_side)
    answered_all: dict[str, Counter[int]] = field(default_factory=_by_side)
    intervals: dict[str, list[tuple[int, int, dict[str, int]]]] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)  # by node
    faults: Counter[str] = field(default_factory=Counter)

    def take(self, line: bytes, honest_port: bytes) -> None:
        """Take an event of the topic."""
        try:
            event = orjson.loads(line)
        except ValueError:
            self.faults["an event that is not JSON"] += 1
            return
        self.events[event["node"]] += 1
        if event["kind"] == "agent":
            found = self.intervals.setdefault(event["node"], [])
            found.append((event["ts"], event["ts"] - event["since"], event["losses"]))
        elif event["kind"] == "flow":
            side = SIDES[event["side"]]
            self.answered_all[side][event["ts"]] += event["responses"]
            if honest_port in line:
                self.answered[side][event["ts"]] += event["responses"]

    def take_other(self, line: bytes) -> None:
        """Count an event of another agent."""
        self.events[orjson.loads(line)["node"]] += 1

    def find_markers(self, record: bytes) -> None:
        """Count the markers in a record, whose lines need not be events."""
        self.faults["markers in events"] += record.count(MARKER)

    def ends(self) -> list[int]:
        """Return the times at which intervals of the attacked agents ended, in order."""
        return sorted(ts for intervals in self.intervals.values() for ts, _, _ in intervals)

    def losses(self, since_us: int, until_us: int) -> dict[str, int]:
        """Return by how much losses grew between two ends of intervals."""
        grown: Counter[str] = Counter()
        for intervals in self.intervals.values():
            before = max((each for each in intervals if each[0] <= since_us), default=(0, 0, {}))[2]
            after = max((each for each in intervals if since_us < each[0] <= until_us), default=(0, 0, before))[2]
            grown.update({name: count - before.get(name, 0) for name, count in after.items()})
        return {name: count for name, count in grown.items() if count}


def read_reported(bootstrap: str, topic: str, honest_port: int, attacked: str) -> Reported:
    """Read all events of nodes whose name begins with `attacked`; only count those of other nodes."""
    reported, port, node = Reported(), f":{honest_port}".encode(), f'"node":"{attacked}'.encode()
    for value in values(bootstrap, topic):
        reported.find_markers(value)
        for line in value.splitlines():
            if node in line:
                reported.take(line, port)
            elif b'"node"' in line:
                reported.take_other(line)
    return reported


def figures(phase: Phase, next_us: int, reported: Reported, times: Times, limit_bytes: int) -> dict[str, Any]:
    """Return the figures of a flood; next_us: when the next one began."""
    ends = reported.ends()
    since_us = ends[max(0, bisect_right(ends, phase.began_us) - 1)]
    until_us = ends[bisect_right(ends, next_us) - 1]
    answered = [us for _, us in times.exchanges.values() if us is not None and since_us < us <= until_us]
    meanwhile = sum(phase.began_us <= us <= phase.ended_us for us in answered)
    missing = max(_missing(len(answered), reported.answered, since_us, until_us))
    requests = phase.done.get("requests")
    of_all = () if requests is None else _missing(len(answered) + requests, reported.answered_all, since_us, until_us)
    lengths = [us for some in reported.intervals.values() for end, us, _ in some if since_us < end <= until_us]
    return {
        "flood": phase.name,
        "done": phase.done,
        "peak_mib": round(phase.peak_bytes / (1 << 20), 1),
        "limit_mib": round(limit_bytes / (1 << 20), 1),
        "seconds": round((phase.ended_us - phase.began_us) / 1e6, 1),
        "honest_requests": meanwhile,
        "missing": missing,
        "missing_of_all": sum(of_all),  # of both sides; 0 also if the flood does not count its requests
        # A loss may last longer than the flood.
        "reported_percent": max(0, round(100 * (1 - missing / meanwhile), 2)) if meanwhile else None,
        "losses": reported.losses(since_us, until_us),
        "longest_interval_s": round(max(lengths, default=0) / 1e6, 1),
        "slowest_health_s": round(phase.slowest_health_s, 2),
        "unhealthy": dict(phase.unhealthy),
        "unhealthy_in_a_row": phase.unhealthy_in_a_row,
        "restarts": phase.restarts,
        "pages": dict(phase.pages),
        "problems": [*phase.problems, *sorted({*phase.bad_pages})],
    }


def _missing(on_the_wire: int, answered: dict[str, Counter[int]], since_us: int, until_us: int) -> list[int]:
    """Return how many responses each side lacks in the intervals that end in this time."""
    counts = (sum(n for us, n in ends.items() if since_us < us <= until_us) for ends in answered.values())
    return [max(0, on_the_wire - count) for count in counts]


def faults(row: dict[str, Any], *, may_lose: bool) -> Iterator[str]:
    """Yield the violated expectations of a flood; may_lose: its address is that of the honest clients."""
    name = row["flood"]
    yield from (f"{name}: {problem.splitlines()[0]}" for problem in row["problems"])
    if row["peak_mib"] > row["limit_mib"]:
        yield f"{name}: {row['peak_mib']} MiB of memory, the limit is {row['limit_mib']}"
    if row["reported_percent"] is None:
        yield f"{name}: honest clients did nothing"
    elif row["honest_requests"] < LEAST_PER_S * row["seconds"]:
        yield f"{name}: {row['honest_requests']} honest requests in {row['seconds']} s"
    elif row["reported_percent"] < LEAST_PERCENT and not may_lose:
        yield f"{name}: {row['reported_percent']} % of honest requests reported"
    explaining = {*EXPLAINING, *(["peer_limited"] if may_lose else [])}  # then honest clients share the flood's bucket
    explained = sum(row["losses"].get(loss, 0) for loss in explaining)
    per_second = row["honest_requests"] / row["seconds"] if row["seconds"] else 0
    if row["missing"] - explained > UNEXPLAINED_S * per_second:
        yield f"{name}: {row['missing']} honest requests missing, losses explain {explained}"
    explained = sum(row["losses"].get(loss, 0) for loss in EXPLAINING_ALL)
    if row["missing_of_all"] - explained > 2 * UNEXPLAINED_S * per_second:
        yield f"{name}: {row['missing_of_all']} requests of all clients missing, losses explain {explained}"
    if row["restarts"]:
        yield f"{name}: the agent ended"
    if row["unhealthy_in_a_row"] >= UNHEALTHY_IN_A_ROW or row["slowest_health_s"] > LONGEST_HEALTH_S:
        yield f"{name}: health answered by {row['unhealthy']}, slowest {row['slowest_health_s']} s"
    if row["longest_interval_s"] > LONGEST_INTERVAL_S:
        yield f"{name}: an interval of {row['longest_interval_s']} s"
    if not row["pages"].get("200") and name not in OF_HTTP:
        yield f"{name}: no page was answered, but {row['pages']}"
    if row["done"].get("done", 0) < LEAST_DONE * row["done"].get("planned", 0):
        yield f"{name}: {row['done']['done']} of {row['done']['planned']} steps done"
    if refused := row["done"].get("refused by the broker"):
        yield f"{name}: the broker refused {len(refused)} forged records"
    ring = row["done"].get("ring")
    if ring and ring["markers"]:
        yield f"{name}: {ring['markers']} markers in the ring"
    if ring is not None and not ring.get("samples"):
        yield f"{name}: the second capture saw nothing"


def faults_of_logs(logs: Iterable[Path]) -> Iterator[str]:
    """Yield the lines that do not belong into the log of an agent or a pipeline."""
    for log in logs:
        text = log.read_bytes() if log.exists() else b""
        if log.name == AGENT_LOG:  # the JVM's has tabs
            yield from (f"{log.parent.name}/{log.name}: {what}" for what in suspicious(text))
        elif MARKER in text:
            yield f"{log.parent.name}/{log.name}: markers"
        lines = [line for line in text.decode(errors="replace").splitlines() if any(word in line for word in _TROUBLE)]
        yield from (f"{log.parent.name}/{log.name}: {line[:200]}" for line in lines[:3])
