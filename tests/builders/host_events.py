"""Builds what the agents of many hosts report in rounds."""

from __future__ import annotations

from kafka_probe.protocol.api_keys import ApiKey
from tests.builders.spark_events import (
    BROKER,
    CLIENT,
    SECOND_US,
    Event,
    agent_event,
    at_end,
    closed,
    offset_seen,
    offsets_event,
    opened,
    requested,
)


def round_of_host(host: int, end: str, number: int, *, first: int, count: int) -> list[Event]:
    """Return an agent's events of a round: new connections, their traffic, and the closes of the last round's.

    Both ends report the close of every second connection. Only the broker's end knows the names of topics.
    first, count: the numbers of the new connections.
    """
    new, old = range(first, first + count), range(first - count, first) if number else ()
    topic = {"topic_id": f"{number % 3:032x}", "requests": 1, "records": number, "bytes": 10}
    named = {"topic": f"topic-{number % 3}"} if end == BROKER else {}
    traffic = {
        "api": "Produce",
        "api_key": ApiKey.PRODUCE,
        "api_version": 11,
        "requests": 1,
        "latency": {"70": 1, str(number): 1},
    }
    reported = [
        *(opened(end, one) for one in new),
        *(at_end(end, "flow", one, **traffic, topics=[topic | named]) for one in new),
        requested(end, first),
        *(
            closed(end, one, how=("fin", "rst_received")[one % 2], silence_us=30 * SECOND_US)
            for one in old
            if end == CLIENT or one % 2 == 0
        ),
        offsets_event(end, [offset_seen(number)], [offset_seen(number, group="billing")]),
        agent_event(end, until_s=121 + number),
    ]
    return [_of_host(host, event) for event in reported]


def _of_host(host: int, event: Event) -> Event:
    """Return the event as of an agent on another host."""
    return event | {name: f"{event[name]}-{host}" for name in ("agent_id", "node", "conn_id") if name in event}
