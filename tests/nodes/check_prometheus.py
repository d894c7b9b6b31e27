"""A real Prometheus scrapes a real agent, evaluates all dashboard queries, and a rule reaches an Alertmanager."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from kafka import KafkaProducer

from tests.lab.alertmanager import Receiver
from tests.lab.broker import Broker
from tests.lab.monitoring import expressions
from tests.lab.processes import free_port, wait_until
from tests.lab.product import Agent
from tests.lab.prometheus import Prometheus
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker]

TOKEN = "the-right-one"
BUFFER_BYTES = 20_000


@dataclass(frozen=True, slots=True)
class Watch:
    """A broker, an agent that watches it and sends its events there, and the programs that watch the agent."""

    broker: Broker
    agent: str
    prometheus: Prometheus
    alertmanager: Receiver


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    directory, agent = tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        up = stack.enter_context
        environment = up(pytest.MonkeyPatch.context())
        environment.setenv("KAFKA_PROBE_LISTEN_TOKEN", TOKEN)
        broker = up(Broker(directory / "broker"))
        create_topics(broker.bootstrap, ["orders"], partitions=1)
        to = ("--bootstrap-servers", broker.bootstrap, "--sink-buffer-bytes", str(BUFFER_BYTES))
        flags = ("--ports", str(broker.port), "--interval-s", "0.5", "--flush-timeout-s", "0", "--listen", agent)
        up(Agent(directory, *to, *flags))
        alertmanager = up(Receiver(directory / "alertmanager"))
        prometheus = up(Prometheus(directory / "prometheus", agent, TOKEN, alertmanager.url.removeprefix("http://")))
        yield Watch(broker, agent, prometheus, alertmanager)


@pytest.fixture
def client(watch: Watch) -> Iterator[None]:
    over = threading.Event()

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=watch.broker.bootstrap, client_id="shop")
        while not over.wait(0.02):
            producer.send("orders", b"one").get(timeout=30)
        producer.close()

    thread = threading.Thread(target=produce)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.usefixtures("client")
def test_prometheus_sees_what_a_client_does(watch: Watch) -> None:
    rate = 'rate(kafka_probe_topic_records_total{topic="orders", api="Produce", side="server", comm="java"}[10s])'

    def rates() -> list[float]:
        return [float(sample["value"][1]) for sample in watch.prometheus.query(rate)]

    wait_until(lambda: any(value > 1 for value in rates()), "a rate of records")
    assert [sample["value"][1] for sample in watch.prometheus.query('up{job="kafka-probe"}')] == ["1"]
    for _, expression in expressions():
        watch.prometheus.query(expression)
    latency = 'histogram_quantile(0.99, sum by (le) (kafka_probe_workload_latency_seconds_bucket{api="Produce"}))'
    assert 0 < float(watch.prometheus.query(latency)[0]["value"][1]) < 30


def test_a_rule_fires_into_alertmanager(watch: Watch) -> None:
    """This test is the last of its file, because it kills the broker."""
    assert watch.alertmanager.alerts() == []
    watch.broker.kill()
    wait_until(lambda: bool(watch.alertmanager.alerts()), "an alert", timeout_s=120)
    (alert,) = watch.alertmanager.alerts()
    named = {"alertname": "KafkaProbeLosesEvents", "reason": "sink_buffer_full", "instance": watch.agent}
    assert alert["labels"].items() >= named.items()
    assert "(sink_buffer_full)" in alert["annotations"]["summary"]
