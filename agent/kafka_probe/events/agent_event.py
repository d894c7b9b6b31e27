"""Declares the `agent` event: the state of the agent and its counters at the end of an interval."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kafka_probe.events.shared_fields import KIND, SINCE, Origin, Stamped, WorkloadFacts


class OpenCountFacts(TypedDict):
    """Open connections of one owner with the same local end and peer network."""

    side: Annotated[str, "client or server"]
    workload: Annotated[
        WorkloadFacts, "the process that owns the watched ends, without cmdline and labels; all null: any process"
    ]
    local: Annotated[str, "address:port of the watched ends; of client ends without the port"]
    peer_network: Annotated[
        str | None,
        "network of the far ends, such as 10.1.2.0/24 or 2001:db8::/64; null: sum of the smallest counts",
    ]
    count: Annotated[int, "open connections"]


class AgentEvent(Origin, Stamped):
    """The state of the agent at the end of an interval."""

    kind: Annotated[Literal["agent"], KIND]
    since: Annotated[int, SINCE]
    complete_since: Annotated[
        int | None, "closes or resets before it may have been lost, µs since epoch; null: none were lost"
    ]
    complete_until: Annotated[int, "all closes and resets before it have been sent, µs since epoch"]
    connections: Annotated[int, "connections open now"]
    open: Annotated[list[OpenCountFacts], "the same, by owner, local end and peer network"]
    other: Annotated[
        dict[str, int],
        "opens, closes and resets of the interval without an event, see open_limit, close_limit and reset_limit: "
        "open/SIDE, close/SIDE/HOW/CLOSED_BY or reset to count",
    ]
    losses: Annotated[dict[str, int], "losses since the start, by reason; normally all are zero"]
    counters: Annotated[dict[str, int], "counters since the start: samples, frames, events and others"]
    shed: Annotated[
        str | None, "detail that is left out above `--cpu-limit`: requests, or topics and requests; null: none"
    ]
    cpu_us: Annotated[int, "CPU time of the agent since its start, µs"]
    kernel_us: Annotated[
        int | None, "run time of its programs in the kernel, µs; null: not measured, see `--kernel-time`"
    ]
    rss_bytes: Annotated[int, "resident memory of the agent"]
    backend: Annotated[str | None, "capture backend"]
    kernel: Annotated[str, "kernel release"]
    version: Annotated[str, "kafka-probe version"]
