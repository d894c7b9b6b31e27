"""The HTTP server of a real agent: its sums equal its events, and it reports the agent's state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from kafka_probe.events import is_internal
from kafka_probe.protocol.error_codes import ERROR_NAMES
from kafka_probe.server.label_tables import Labels
from kafka_probe_pipeline import progress
from tests.lab.broker import Broker
from tests.lab.http import Answer, Samples, get, samples
from tests.lab.monitoring import expressions, metrics
from tests.lab.processes import free_port, wait_until
from tests.lab.product import Agent, read_events
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker]

TOKEN = "the-right-one"
RECORDS = 50
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Lab:
    """A broker, and an agent that watches it and sends what it sees there, too."""

    broker: Broker
    url: str

    def ask(self, path: str) -> Answer:
        return get(self.url + path, token=TOKEN)

    def metrics(self) -> Samples:
        return samples(self.ask("/metrics").text)

    def rows(self, path: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ask(path).json()["rows"]
        return rows


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory, address = tmp_path_factory.mktemp("server"), f"127.0.0.1:{free_port()}"
    with Broker(directory / "broker") as broker, pytest.MonkeyPatch.context() as environment:
        create_topics(broker.bootstrap, ["orders", "payments"], partitions=2)
        environment.setenv("KAFKA_PROBE_LISTEN_TOKEN", TOKEN)
        sends = ("--bootstrap-servers", broker.bootstrap, "--interval-s", "0.5", "--flush-timeout-s", "1")
        served = ("--listen", address, "--kernel-time", "true")
        with Agent(directory, *sends, "--ports", str(broker.port), *served):
            yield Lab(broker, f"http://{address}")


@dataclass(frozen=True, slots=True)
class Seen:
    """Responses of the server while clients were active and after they had closed, and the events up to then."""

    clients: list[dict[str, Any]]
    connections: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    metrics: Samples
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen(lab: Lab) -> Seen:
    producer = KafkaProducer(bootstrap_servers=lab.broker.bootstrap, client_id="shop")
    for number in range(RECORDS):
        producer.send("orders", b"order %d" % number).get(timeout=30)
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=lab.broker.bootstrap,
        client_id="billing",
        group_id="bills",
        auto_offset_reset="earliest",
    )
    with closing(producer), closing(consumer):
        assert len(list(islice(consumer, RECORDS))) == RECORDS
        wait_until(lambda: bool(lab.rows("/api/v1/clients?type=consumer&records=50")), "the consumer and its records")
        clients, connections = lab.rows("/api/v1/clients?limit=1000&internal=true"), lab.rows("/api/v1/connections")
    wait_until(lambda: not any(_of_clients(row) for row in lab.rows("/api/v1/connections")), "the clients to be gone")
    gone_at = lab.metrics()[_LAST]
    wait_until(lambda: lab.metrics()[_LAST] > gone_at + 1.5, "the rest to be reported: closes settle for a second")
    metrics = lab.metrics()
    topics = lab.rows("/api/v1/topics")

    def events() -> list[dict[str, Any]]:
        return read_events(lab.broker.bootstrap)

    wait_until(lambda: events()[-1]["ts"] / 1e6 > metrics[_LAST], "the events to arrive")
    return Seen(clients, connections, topics, metrics, [e for e in events() if e["ts"] / 1e6 <= metrics[_LAST]])


_LAST = "kafka_probe_last_interval_timestamp_seconds", frozenset[tuple[str, str]]()


def _of_clients(row: Mapping[str, Any]) -> bool:
    return row["client"]["id"] in ("shop", "billing")


def counted(metrics: Samples, name: str, *labels: str) -> Counter[Labels]:
    """Return a metric by some of its labels."""
    found: Counter[Labels] = Counter()
    for (sample, pairs), value in metrics.items():
        by_name = dict(pairs)
        if sample == f"kafka_probe_{name}":
            found[tuple(by_name[label] for label in labels)] += int(value)
    return found


def summed(rows: Iterable[tuple[Labels, int]]) -> Counter[Labels]:
    """Return the sums of rows with the same labels, including those that are 0."""
    found: Counter[Labels] = Counter()
    for labels, count in rows:
        found[labels] += count
    return found


@pytest.mark.parametrize("field", ["requests", "responses", "request_bytes", "response_bytes"])
def test_sums_of_traffic_are_those_of_the_events(seen: Seen, field: str) -> None:
    flows = [event for event in seen.events if event["kind"] == "flow" and not event["internal"]]
    by_api = summed(((flow["side"], flow["api"]), flow[field]) for flow in flows)
    assert by_api[("client", "Produce")] > 0
    assert counted(seen.metrics, f"{field}_total", "side", "api") == by_api
    by_workload = summed(((flow["side"], flow["workload"]["comm"], flow["api"]), flow[field]) for flow in flows)
    assert counted(seen.metrics, f"workload_{field}_total", "side", "comm", "api") == by_workload


@pytest.mark.parametrize("field", ["requests", "records", "bytes", "uncounted_bytes"])
def test_sums_of_topics_are_those_of_the_events(seen: Seen, field: str) -> None:
    flows = [event for event in seen.events if event["kind"] == "flow"]
    by_topic = summed(
        ((flow["side"], flow["api"], topic["topic"]), topic[field]) for flow in flows for topic in flow["topics"]
    )
    assert counted(seen.metrics, f"topic_{field}_total", "side", "api", "topic") == by_topic
    if field == "records":
        assert by_topic["client", "Produce", "orders"] == by_topic["client", "Fetch", "orders"] == RECORDS


def test_errors_latencies_and_ends_are_those_of_the_events(seen: Seen) -> None:
    flows = [event for event in seen.events if event["kind"] == "flow" and not event["internal"]]
    errors = summed(((f["side"], ERROR_NAMES[int(code)]), n) for f in flows for code, n in f["errors"].items())
    assert counted(seen.metrics, "errors_total", "side", "error") == errors
    latencies = summed(((f["side"], f["api"]), sum(f["latency"].values())) for f in flows if f["latency"])
    assert counted(seen.metrics, "workload_latency_seconds_count", "side", "api") == latencies
    others = [e for e in seen.events if e["kind"] == "close" and not is_internal(e["client"]["id"])]
    closes = summed(((e["side"], e["how"], e["closed_by"]), 1) for e in others)
    assert counted(seen.metrics, "connections_closed_total", "side", "how", "closed_by") == closes
    assert all((errors, latencies, closes))


def test_losses_and_the_agents_own_cost_are_those_of_its_last_event(seen: Seen) -> None:
    last = [event for event in seen.events if event["kind"] == "agent"][-1]
    assert counted(seen.metrics, "lost_total", "reason") == {(reason,): n for reason, n in last["losses"].items()}
    plain = {name.removeprefix("kafka_probe_"): value for (name, labels), value in seen.metrics.items() if not labels}
    assert plain["cpu_seconds_total"] == last["cpu_us"] / 1e6
    assert plain["kernel_seconds_total"] == last["kernel_us"] / 1e6
    assert 0 < plain["kernel_seconds_total"] < 10
    assert plain["resident_memory_bytes"] == last["rss_bytes"]
    assert plain["events_total"] == last["counters"]["events"]


def test_clients_are_shown_with_what_they_do(seen: Seen) -> None:
    rows = {(row["client"]["id"], row["side"]): row for row in seen.clients if _of_clients(row)}
    for side in ("client", "server"):
        shop, billing = rows["shop", side], rows["billing", side]
        assert (shop["type"], billing["type"], billing["group"]) == ("producer", "consumer", "bills")
        assert shop["client"]["software_name"] == billing["client"]["software_name"] == "kafka-python"
        (written,), (read,) = ([use for use in one["topics"] if use["topic"] == "orders"] for one in (shop, billing))
        assert written["written_bytes"] > 0 == written["read_bytes"]
        assert written["written_records"] == shop["records"]
        assert read["read_bytes"] > 0 == read["written_bytes"]
        assert "Produce" in [use["api"] for use in shop["apis"]]
        assert shop["address"] == "127.0.0.1"
    assert rows["shop", "client"]["records"] == rows["billing", "client"]["records"] == RECORDS
    assert rows["shop", "server"]["workload"]["comm"] == "java"


def test_the_agent_itself_is_one_internal_client(seen: Seen) -> None:
    own = [row for row in seen.clients if (row["client"]["id"] or "").startswith("kafka-probe-")]
    assert {row["type"] for row in own} == {"internal"}
    assert counted(seen.metrics, "internal_requests_total", "side")["server",] > 0


def test_open_connections_are_shown_with_both_ends(seen: Seen, lab: Lab) -> None:
    ends = {(row["side"], row["flow_id"]) for row in seen.connections if row["client"]["id"] == "billing"}
    flows = {flow_id for _, flow_id in ends}
    assert flows
    assert ends == {(side, flow_id) for side in ("client", "server") for flow_id in flows}
    assert {row["peer"] for row in seen.connections if row["side"] == "client"} == {lab.broker.bootstrap}


def test_topics_are_shown_by_side_and_api(seen: Seen) -> None:
    keyed = {(row["side"], row["api"], row["topic"]): row for row in seen.topics}
    row = keyed["server", "Produce", "orders"]
    assert row["requests"] == row["records"] == RECORDS
    assert row["workloads"][0]["comm"] == "java"


@pytest.mark.usefixtures("seen")
def test_documented_questions_have_answers(lab: Lab) -> None:
    documents = "".join((ROOT / document).read_text() for document in ("README.md", "docs/guide/monitoring.md"))
    asked = re.findall(r"curl -s '?http://127.0.0.1:9465([^\s'`]+)", documents)
    assert [question for question in asked if lab.ask(question).status != 200] == []
    (consumers,) = (question for question in asked if question.startswith("/api/v1/clients"))
    assert {row["client"]["id"] for row in lab.rows(consumers)} == {"billing"}


def test_all_that_rules_and_dashboards_ask_for_is_exposed(lab: Lab) -> None:
    exposed = set[str]()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", lab.ask("/metrics").text, re.MULTILINE):
        exposed |= {f"{name}_{part}" for part in ("bucket", "count", "sum")} if kind == "histogram" else {name}
    asked = {metric for _, expression in expressions() for metric in metrics(expression)}
    assert {metric for metric in asked if not metric.startswith(progress.PREFIX)} <= exposed


def test_without_the_token_only_health_is_shown(lab: Lab) -> None:
    assert get(f"{lab.url}/metrics").status == get(f"{lab.url}/api/v1/clients", token="wrong").status == 401
    assert get(f"{lab.url}/healthz").status == get(f"{lab.url}/readyz").status == 200


def test_an_agent_whose_brokers_are_away_is_healthy_and_not_ready(lab: Lab) -> None:
    """This test is the last of its file, because it kills the broker."""
    wait_until(lambda: get(f"{lab.url}/readyz").status == 200, "the sink to take events")
    lab.broker.kill()
    wait_until(lambda: get(f"{lab.url}/readyz").status == 503, "the sink to notice")
    assert get(f"{lab.url}/readyz").text == "the brokers do not accept events; see the log\n"
    assert get(f"{lab.url}/healthz").text == "ok\n"
    ready = "kafka_probe_ready", frozenset[tuple[str, str]]()
    assert lab.metrics()[ready] == 0
