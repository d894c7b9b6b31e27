"""The counts of open connections that an event has one by one, and those that it sums."""

from __future__ import annotations

from dataclasses import replace

import orjson

from kafka_probe.connections.identity import read_open
from kafka_probe.connections.open_counts import MAX_BYTES, MAX_COUNTS, OpenCounts
from kafka_probe.events import OpenCountFacts
from kafka_probe.workloads import NOBODY
from tests.builders.samples import opened


def report_of(addresses: int, network: str = "10.1.0.0/24") -> list[OpenCountFacts]:
    """Return the report of two connections to each of so many addresses of servers."""
    identity, _ = read_open(opened(server_side=True)[0])
    counts = OpenCounts()
    for number in range(2 * addresses):
        counts.add(replace(identity, local=f"{number % addresses}", peer_network=network), NOBODY)
    return counts.report()


def test_an_event_has_512_counts_half_of_them_without_networks_and_sums_the_rest() -> None:
    assert len(report_of(2 * MAX_COUNTS)) == 2 * MAX_COUNTS
    *counts, rest = report_of(2 * MAX_COUNTS + 5)
    assert len(counts) == 2 * MAX_COUNTS
    assert sum(count["peer_network"] is None for count in counts) == MAX_COUNTS
    assert (rest["side"], rest["local"], rest["count"]) == ("server", "", 10)


def test_counts_have_256_kib_of_json_and_the_rest_is_summed() -> None:
    *counts, rest = report_of(MAX_COUNTS, network="x" * 5000)
    sizes = [len(orjson.dumps(count)) for count in counts]
    assert MAX_BYTES - max(sizes) < sum(sizes) <= MAX_BYTES
    assert rest["count"] == 2 * (MAX_COUNTS - len(counts))
