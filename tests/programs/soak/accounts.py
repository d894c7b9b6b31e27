"""Compares the agents' events with the wire, request by request and end by end.

Every request is reported once, by its flow id and correlation id, or it was on its way while no agent watched: between
the last report of a killed agent and the attachment of its successor. The same is true of every end. An agent at the
broker's end cannot see requests that the broker never read because their client had closed; a response that ended early
for the same reason is counted as incomplete.

A flood has a port of its own. The agents' reports of it are compared with the number of requests sent: each is
reported, or counted by a loss that only floods cause. Events of a flood may be lost when they exceed the flood's share
of the sink's buffer: then the gaps in their numbers are as many as the agent counted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any, TypeVar

from tests.lab.times import Times
from tests.programs.attack.flood import REQUESTS

Key = TypeVar("Key", bound=Hashable)
Interval = tuple[int, int]
Requests = Counter[tuple[str, int, str | None]]

_SLACK_US = 200_000  # what a captured packet and the call that moved its bytes may be apart
# Of an agent before it is killed: several intervals, and what its sink waits for.
_LONGEST_SILENCE_US = 15_000_000
# What only a flood causes: that its peer had its share of the ring, also of what begins and ends connections.
OF_FLOODS = {"peer_limited", "frame_incomplete", "close_unknown"}
# Losses that leave all requests counted: closes without sums, flows without connections, events the HTTP server missed.
_DETAILS_LOST = {"activity_limit", "flow_limit", "server_behind"}
# Losses of archived frames, which have a rate, and wait in memory only while their broker is stopped.
_OF_ARCHIVE = {"archive_rate", "archive_sink_buffer_full"}
# How a frame that broke off is counted: by where it did.
_OF_BROKEN_FRAMES = ("header_incomplete", "frame_truncated")
# Exchanges of a connection that is older than the agent, after which its position in both streams is known.
_FOUND_WITHIN = 3
# What an agent finds on connections that are older than itself.
_OF_YOUTH = {"resync", "response_unmatched", "request_unanswered", "frame_truncated"}


@dataclass(slots=True)
class AgentReports:
    """The events of one agent. reported_until_us: its last exchange's time; complete_until_us: the same for ends.

    flood_port: the broker's port of floods; `flooded` are requests to it, as flows count them.
    """

    exchanges: Counter[tuple[str, int]] = field(default_factory=Counter)
    closes: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)  # exchanges, by flow id
    responses: Counter[str] = field(default_factory=Counter)  # the same as its flows count them
    asked: Counter[str] = field(default_factory=Counter)  # requests, by flow id, as its flows count them
    requests: Requests = field(default_factory=Counter)  # as its flows count them
    connections: list[int] = field(default_factory=list)  # open ones, each interval
    memory: list[tuple[int, int]] = field(default_factory=list)  # time, resident bytes
    losses: dict[str, int] = field(default_factory=dict)
    cpu_us: int = 0
    reported_until_us: int = 0
    complete_until_us: int = 0
    events: int = 0
    missing: int = 0  # events by the gaps in their numbers
    flood_port: int = 0
    flooded: int = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event, in its agent's order."""
        self.missing += abs(event["seq"] - self.events)
        self.events = event["seq"] + 1
        is_flow = event["kind"] == "flow"
        if is_flow:
            self.requests[event["api"], event["api_version"], event["client"]["id"]] += event["requests"]
        # A flow without a connection is one of `flow_limit`.
        if (event.get("local") or "").endswith(f":{self.flood_port}") or (is_flow and event["conn_id"] is None):
            self.flooded += event["requests"] if is_flow else 0  # a close has the sum of its flows
            return
        match event["kind"]:
            case "request":
                self.exchanges[event["flow_id"], event["correlation_id"]] += 1
                if event["response_bytes"] is not None:
                    self.answered[event["flow_id"]] += 1
                    self.reported_until_us = max(self.reported_until_us, event["ts"])
            case "flow":
                self.responses[event["flow_id"]] += event["responses"]
                self.asked[event["flow_id"]] += event["requests"]
            case "close":
                self.closes[event["flow_id"]] += 1
            case "agent":
                self.complete_until_us = event["complete_until"]
                self.connections.append(event["connections"])
                self.memory.append((event["ts"], event["rss_bytes"]))
                self.losses, self.cpu_us = event["losses"], event["cpu_us"]

    def memory_between(self, start_us: float, end_us: float) -> float:
        """Return the median of its resident memory between these times, in bytes."""
        return median(size for time_us, size in self.memory if start_us <= time_us <= end_us)


def reports_of_nodes(lines: Iterable[bytes], nodes: Iterable[str], flood_port: int) -> list[AgentReports]:
    """Return the events of each agent, by the name of its node: each node has one agent."""
    agents = {node: AgentReports(flood_port=flood_port) for node in nodes}
    for event in map(json.loads, lines):
        agents[event["node"]].take(event)
    return list(agents.values())


@dataclass(slots=True)
class Account:
    """Counts of each kind, those of ends that no agent watched, and a sentence for each difference left.

    unread: what the broker did not read. unsure: what the broker may have read or not, because no agent watched.
    """

    counts: dict[str, int] = field(default_factory=dict)
    unread: frozenset[Any] = frozenset()
    unsure: frozenset[Any] = frozenset()
    unexplained: list[str] = field(default_factory=list)

    def compare(
        self,
        what: str,
        wire: Mapping[Key, Interval],
        reported: Iterable[Counter[Key]],
        unwatched: Sequence[Interval],
        unread: frozenset[Key] = frozenset(),
    ) -> None:
        """Compare each item, with its time on the wire, with how often it was reported."""
        times = sum(reported, Counter[Key]())
        silent = {key for key in wire if key not in times}
        excused = {key for key in silent if any(a <= wire[key][1] and wire[key][0] <= b for a, b in unwatched)}
        self.counts |= {what: len(wire), f"{what} while no agent watched": len(excused)}
        self.unread |= silent & unread - excused
        self.unexplained += [f"{what}: {key} at {wire[key]} was not reported" for key in silent - excused - unread]
        self.unexplained += [f"{what}: {key} was reported {count} times" for key, count in times.items() if count > 1]
        self.unexplained += [f"{what}: {key} was reported, and never sent" for key in times.keys() - wire.keys()]

    def equal(
        self,
        what: str,
        counted: Mapping[Key, int],
        expected: Mapping[Key, int],
        unsure: Mapping[Key, int] = MappingProxyType({}),
    ) -> None:
        """Compare two counts of the same. unsure: by how much the first may be less."""
        self.unexplained += [
            f"{what}: {counted.get(key, 0)} of {key} instead of {expected.get(key, 0)}"
            for key in counted.keys() | expected.keys()
            if not 0 <= expected.get(key, 0) - counted.get(key, 0) <= unsure.get(key, 0)
        ]

    def in_flows(self, what: str, counted: Counter[str], expected: Counter[str], losses: Mapping[str, int]) -> None:
        """Compare the counts of flows by connection with others; `flow_limit` counts frames of flows without one."""
        limited = losses.get("flow_limit", 0)
        self.equal(f"{what} in flows", counted, expected, dict.fromkeys(expected, limited))
        if (missing := expected.total() - counted.total()) > limited:
            self.unexplained.append(f"{what} in flows: {missing} are missing, and flow_limit is {limited}")


def account_flood(kept: Account, agents: Sequence[AgentReports], sent: int) -> None:
    """Compare the agents' reports of floods with the number of requests sent while an agent watched."""
    reported = sum(one.flooded for one in agents)
    counted = sum(one.losses.get(name, 0) for one in agents for name in OF_FLOODS)
    counted += REQUESTS["connections"] * sum(one.missing for one in agents)  # an event is of one connection
    kept.counts |= {"requests of floods": sent, "requests of floods that were reported": reported}
    if not sent - counted <= reported <= sent:
        kept.unexplained.append(f"floods: {reported} of {sent} requests reported, and {counted} losses are counted")


def never_read(times: Times) -> frozenset[tuple[str, int]]:
    """Return the requests that no broker read because the client had closed.

    A broker reads a connection's next request when it has answered the one before: Kafka's Selector mutes the channel.
    So these have no response, and the request before was answered after the client's close, or never.
    """
    found, before = set(), dict[str, int | None]()
    for (flow_id, correlation_id), (_, answered_us) in times.exchanges.items():
        last_us = before.get(flow_id, 0)
        if answered_us is None and flow_id in times.ends and (last_us is None or last_us >= times.ends[flow_id][0]):
            found.add((flow_id, correlation_id))
        before[flow_id] = answered_us
    return frozenset(found)


def before_found(times: Times, attached_us: Sequence[int]) -> frozenset[tuple[str, int]]:
    """Return the requests by which an agent finds its position in older connections: none of them is reported."""
    asked: dict[str, list[tuple[int, int]]] = {}
    for (flow_id, correlation_id), (asked_us, _) in times.exchanges.items():
        asked.setdefault(flow_id, []).append((asked_us, correlation_id))
    found = set[tuple[str, int]]()
    for flow_id, requests in asked.items():
        for since_us in attached_us:
            later = [number for asked_us, number in requests if asked_us >= since_us]
            if len(later) < len(requests):
                found.update((flow_id, number) for number in later[:_FOUND_WITHIN])
    return frozenset(found)


def account(
    times: Times, agents: Sequence[AgentReports], attached_us: Sequence[int], killed_us: Sequence[int]
) -> Account:
    """Compare the reports of all agents with the times on the wire; the last agent was stopped in order.

    attached_us: when each was attached for sure. killed_us: when each but the last was killed.
    """
    kept = Account()
    answered = {
        key: (asked_us, answered_us or times.ends[key[0]][1])
        for key, (asked_us, answered_us) in times.exchanges.items()
    }
    deaths = list(zip(agents, attached_us, attached_us[1:], strict=False))
    unwatched = [(max(one.reported_until_us, since_us) - _SLACK_US, again_us) for one, since_us, again_us in deaths]
    unread = never_read(times)
    finding = before_found(times, attached_us)
    kept.compare("requests", answered, (one.exchanges for one in agents), unwatched, unread | finding)
    kept.counts["requests by which positions were found"] = len(kept.unread - unread)
    kept.unread &= unread
    kept.unsure = unread - kept.unread - sum((one.exchanges for one in agents), Counter[tuple[str, int]]()).keys()
    kept.counts["requests that the broker did not read"] = len(kept.unread)
    for number, (one, since_us, until_us) in enumerate(zip(agents, attached_us, killed_us, strict=False), 1):
        if until_us - max(one.reported_until_us, since_us) > _LONGEST_SILENCE_US:
            kept.unexplained.append(
                f"agent {number}: it reported nothing from {one.reported_until_us} to its end at {until_us}"
            )
    unwatched = [(max(one.complete_until_us, since_us) - _SLACK_US, again_us) for one, since_us, again_us in deaths]
    kept.compare("ends", times.ends, (one.closes for one in agents), unwatched)
    kept.in_flows("answers", agents[-1].responses, agents[-1].answered, agents[-1].losses)
    asked = Counter(flow_id for flow_id, _ in agents[-1].exchanges.elements())
    kept.in_flows("requests", agents[-1].asked, asked, agents[-1].losses)
    kept.counts["frames that broke off"] = len(times.broken_off)
    for number, (one, since_us, end_us) in enumerate(zip(agents, attached_us, [*killed_us, math.inf], strict=True), 1):
        broken_off = sum(since_us <= us <= end_us for us in times.broken_off)
        losses = Counter(one.losses)
        for name in _OF_BROKEN_FRAMES:
            counted = min(losses[name], broken_off)
            losses[name] -= counted
            broken_off -= counted
        expected = OF_FLOODS | _DETAILS_LOST | _OF_ARCHIVE | (_OF_YOUTH if number > 1 else set())
        dropped = losses.pop("sink_buffer_full", 0)
        unexpected = {name: count for name, count in losses.items() if count and name not in expected}
        kept.equal(f"losses of agent {number}", unexpected, {})
        kept.equal(f"missing events of agent {number}", {"events": one.missing}, {"events": dropped})
    return kept
