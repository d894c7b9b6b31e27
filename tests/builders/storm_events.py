"""Builds the events of many connections that close for one reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.builders.connection_ends import EXITED, RESET
from tests.builders.spark_events import BROKER, CLIENT, NOON_US, SECOND_US, Event, agent_event, closed, flow, opened


def workload(number: int) -> Event:
    """Return the process of a client, in one of two pods; the first has two of three clients."""
    pod = "orders-1" if number % 3 else "orders-2"
    return {"pid": 1000 + number, "start_time": 1, "comm": "java", "namespace": "team", "pod": pod}


def open_ends(numbers: Iterable[int]) -> list[Event]:
    ends = []
    for number in numbers:
        ends += [opened(CLIENT, number, workload=workload(number)), opened(BROKER, number)]
    return ends


def reports(numbers: Iterable[int], until_s: float = 3) -> list[Event]:
    """Return the reports of both agents, of which these connections are open at both ends."""
    broker = {"side": "server", "local": "10.0.0.9:9092", "peer_network": "10.9.0.0/24"}
    pods = Counter(workload(number)["pod"] for number in numbers)
    clients = [
        {"side": "client", "local": "10.0.1.1", "workload": workload(0) | {"pod": pod}, "count": count}
        for pod, count in pods.items()
    ]
    return [
        agent_event(CLIENT, until_s=until_s, open=clients),
        agent_event(BROKER, until_s=until_s, open=[broker | {"count": pods.total()}]),
    ]


def dropped(numbers: Iterable[int], at_s: float = 0, facts: Event = RESET) -> list[Event]:
    """Return closes of clients after about 30 s of silence, with ages within 5 %, over 2 s.

    By default a firewall has forgotten the connections and resets them.
    """
    return [
        closed(
            CLIENT,
            number,
            workload=workload(number),
            closing_ts=NOON_US + round((at_s + number % 200 / 100) * SECOND_US),
            silence_us=30 * SECOND_US + number % 15 * 100_000,
            **facts,
        )
        for number in numbers
    ]


def dropped_at_once(numbers: Iterable[int]) -> list[Event]:
    """Return closes of clients that a firewall resets at noon, each after 30 s of silence."""
    return [closed(CLIENT, number, **RESET) for number in numbers]


def crashes(workload_number: int, numbers: Iterable[int]) -> list[Event]:
    """Return the closes of connections of one workload's processes, which are killed."""
    process = workload(0) | {"pod": f"pod-{workload_number}"}
    return [
        event
        for number in numbers
        for event in (closed(CLIENT, number, **EXITED, workload=process), closed(BROKER, number))
    ]


def crash_of(number: int, name: str) -> list[Event]:
    """Return traffic of a process and the end of its connection by its exit. All that it names has this name."""
    facts = {
        "client": {"id": name, "software_name": name, "software_version": name},
        "workload": {"pid": number, "start_time": 1, "comm": name, "pod": name, "namespace": name},
    }
    return [
        flow(number, **facts, group=name, topics=[{"topic": name, "requests": 1}]),
        opened(CLIENT, number, **facts),
        opened(BROKER, number),
        closed(CLIENT, number, **EXITED, **facts),
        closed(BROKER, number),
    ]
