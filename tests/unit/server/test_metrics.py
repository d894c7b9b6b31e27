"""The metrics page is valid, complete, and derived from one declaration."""

from __future__ import annotations

import logging
import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from kafka_probe.config import Config
from kafka_probe.connections.offsets import GroupLag
from kafka_probe.events import bucket_of
from kafka_probe.server.collector import Collector, family
from kafka_probe.server.label_tables import LABEL_BYTES, OTHER
from kafka_probe.server.lag_table import LagTable
from kafka_probe.server.metrics import COUNTED, METRICS, PREFIX
from kafka_probe.server.traffic import BOUNDS_S
from kafka_probe.server.view import View
from kafka_probe.sinks.kafka import KafkaSink
from tests.builders.events import NOW_US, agent, close, flow, open_now, opened, reset, topic, view, workload
from tests.builders.fed_agent import Fed
from tests.lab.http import Samples, samples
from tests.lab.processes import free_port


def collector(shown: View) -> Collector:
    """Return a collector of all metrics."""
    return Collector(*(family(metric, metric.read(shown)) for metric in METRICS))


def scraped(shown: View) -> Samples:
    found = samples(generate_latest(collector(shown)).decode())
    return {(name.removeprefix(PREFIX), labels): value for (name, labels), value in found.items()}


def value(shown: View, name: str, **labels: str) -> float | None:
    return scraped(shown).get((name, frozenset(labels.items())))


BUSY = (
    opened(),
    flow(errors={"6": 2}, latency={str(bucket_of(3000)): 9}, throttle_ms=1500, topics=[topic(errors={"6": 2})]),
    flow(api="Fetch", latency_empty={str(bucket_of(500_000)): 1}, workload=workload('"\\\n', unit="é.service")),
    close(),
    reset(),
    agent(
        open=[open_now(3)],
        losses={"ring_full": 2},
        counters=dict.fromkeys(COUNTED, 5),
        cpu_us=2_500_000,
        kernel_us=40_000,
        rss_bytes=80 << 20,
    ),
)


def test_every_kind_of_number_is_exposed_in_base_units() -> None:
    shown = view(*BUSY)
    owner = {"side": "client", "workload": "", "comm": "java"}
    assert value(shown, "requests_total", side="client", api="Produce") == 10
    assert value(shown, "errors_total", side="client", api="Produce", error="NOT_LEADER_OR_FOLLOWER") == 2
    assert value(shown, "workload_response_bytes_total", **owner, api="Produce") == 900
    assert value(shown, "workload_throttle_seconds_total", **owner, api="Produce") == 1.5
    assert value(shown, "topic_records_total", **owner, api="Produce", topic="orders") == 50
    assert value(shown, "connections", **owner) == 3
    assert value(shown, "connections_closed_total", side="client", how="fin", closed_by="local") == 1
    assert value(shown, "workload_connections_closed_total", **owner, how="fin", closed_by="local") == 1
    assert value(shown, "lost_total", reason="ring_full") == 2
    assert value(shown, "cpu_seconds_total") == 2.5
    assert value(shown, "kernel_seconds_total") == 0.04
    assert value(shown, "resident_memory_bytes") == 80 << 20
    assert value(shown, "last_interval_timestamp_seconds") == NOW_US / 1e6
    assert value(shown, "ready") == 1


def test_lags_have_a_series_per_group_and_topic_and_the_smallest_count_as_others() -> None:
    lags = [
        GroupLag("c", "g", "t", 2, 30, 20),
        GroupLag("c", "\\x1b", "t", 1, 9, 9),
        GroupLag("c", "\x1b", "t", 1, 4, 4),
        GroupLag("c", "h", "t", 1, 3, 3),
        GroupLag("c", "i", "t", 1, 2, 2),
    ]
    shown = view(agent(), lags=lags, limit=2)
    ours, same = {"cluster": "c", "group": "g", "topic": "t"}, {"cluster": "c", "group": "\\x1b", "topic": "t"}
    others = dict.fromkeys(ours, "other")
    for labels, found in ((ours, (30, 20, 2)), (same, (13, 9, 2)), (others, (5, 3, 2))):
        names = ("group_lag_records", "group_lag_records_max", "group_lag_partitions")
        assert tuple(value(shown, name, **labels) for name in names) == found
    assert value(shown, "label_sets", table="group_lags") == 2
    assert value(shown, "label_sets_full", table="group_lags") == 1


def test_a_lag_keeps_its_series_as_long_as_the_group_is_behind() -> None:
    table = LagTable(1)
    for totals, group in (((5, 4), "a"), ((1, 99), "a"), ((0, 2), "b"), ((9, 5), "b"), ((0, 0), "b")):
        table.update(GroupLag("c", name, "t", 1, total, total) for name, total in zip("ab", totals, strict=True))
        assert [labels for labels, _ in table] == [("c", group, "t"), (OTHER,) * 3]


def test_a_group_with_the_name_of_the_sum_is_part_of_it() -> None:
    table = LagTable(1)
    table.update(GroupLag(*(OTHER, OTHER, OTHER), 1, total, total) for total in (9, 5))
    assert [(labels, lag.total) for labels, lag in table] == [((OTHER,) * 3, 14)]


def test_lags_with_long_names_leave_space_for_fewer() -> None:
    table = LagTable(10)
    table.update(GroupLag("c", f"{number}".ljust(4 * LABEL_BYTES, "-"), "t", 1, number, 9) for number in range(40))
    assert len(table) == 2
    table.update([])
    assert [*table] == []


def test_clients_have_series_of_their_own_and_by_topic() -> None:
    shown = view(*BUSY)
    of_client = {"side": "client", "client_id": "billing", "group": ""}
    library = {"library": "librdkafka 2.5"}
    assert value(shown, "client_requests_total", **of_client, **library) == 20
    assert value(shown, "client_throttle_seconds_total", **of_client, **library) == 1.5
    assert value(shown, "client_topic_bytes_total", **of_client, api="Produce", topic="orders") == 3000
    assert value(shown, "label_sets_full", table="clients") == 0


def test_a_histogram_holds_what_is_at_most_each_bound() -> None:
    found = {
        dict(labels)["le"]: count
        for (name, labels), count in scraped(view(*BUSY)).items()
        if name == "workload_latency_seconds_bucket"
    }
    assert list(found) == [*map(str, BOUNDS_S), "+Inf"]
    assert [bound for bound, count in found.items() if count == 0] == ["0.0005", "0.001", "0.0025"]
    assert set(found.values()) == {0, 9}


def test_what_is_not_known_has_no_sample() -> None:
    names = {name for name, _ in scraped(view(agent(kernel_us=None, counters={"events": 1})))}
    assert "events_total" in names
    assert names.isdisjoint({"kernel_seconds_total", "sink_waiting_bytes"})
    assert value(view(), "cpu_seconds_total") is None


def test_an_agent_of_no_use_is_not_ready() -> None:
    shown = view()
    shown.agent.turned_s = None
    assert value(shown, "ready") == 0


def test_every_metric_is_declared_once_and_exposed_by_a_busy_agent() -> None:
    names = [PREFIX + metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    exposed = {name for name, _ in scraped(view(*BUSY, lags=[GroupLag("c", "g", "t", 1, 2, 2)]))}
    wanted = {m.name + ("_bucket" if m.kind == "histogram" else "") for m in METRICS}
    assert wanted <= exposed


def test_everything_that_an_agent_counts_is_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("kafka"), "propagate", True)  # set back: the sink changes it
    fed = Fed()
    sink = KafkaSink(Config(bootstrap_servers=f"127.0.0.1:{free_port()}"))
    counters = {*fed.agent.summary()["counters"], *sink.counters()}
    sink.close(0)
    assert counters == COUNTED.keys()


@pytest.mark.parametrize("shown", [view(), view(*BUSY)], ids=["idle", "busy"])
def test_promtool_has_nothing_to_say(shown: View) -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: run `make setup-tests`"
    done = subprocess.run([promtool, "check", "metrics"], input=generate_latest(collector(shown)), capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_openmetrics_says_the_same() -> None:
    shown: Any = view(*BUSY)
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    families = read_openmetrics(encode(collector(shown)).decode())  # type: ignore[no-untyped-call]  # theirs has none
    collected = [sample for family in families for sample in family.samples]
    assert {(s.name.removeprefix(PREFIX), frozenset(s.labels.items())): s.value for s in collected} == scraped(shown)
