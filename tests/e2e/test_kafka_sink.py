"""The Kafka sink with a real broker: events arrive once and in order, and lost ones are counted."""

from __future__ import annotations

import logging
import subprocess
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    ConfigResourceType,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import MessageSizeTooLargeError

from kafka_probe.config import Config
from kafka_probe.sinks import kafka as sink_kafka
from kafka_probe.sinks.batch import RECORD_BYTES
from kafka_probe.sinks.kafka import KafkaSink, reach
from tests.builders.events import incompressible, numbered
from tests.lab.broker import COUNTED, Broker
from tests.lab.numbered_events import config, read_all
from tests.lab.processes import free_port, wait_until
from tests.lab.topics import create_topics, read_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# kafka-python leaves the sockets of refused connections to the garbage collector.
pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning"),
    pytest.mark.usefixtures("clients_end"),
]


def total(sink: KafkaSink) -> int:
    return sink.counters()["sink_events"] + sum(sink.losses().values())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def test_creates_the_topic_and_delivers_all_events_in_order(broker: Broker) -> None:
    sink = KafkaSink(config(broker, "created", topic_partitions=3))
    for first in range(0, 1000, 100):
        sink.send([numbered(seq) for seq in range(first, first + 100)])
    sink.close(30)

    assert read_all(broker.bootstrap, "created") == list(range(1000))
    assert sink.counters()["sink_events"] == 1000
    assert sink.counters()["sink_waiting_bytes"] == 0
    assert set(sink.losses().values()) == {0}
    assert partitions_of(broker, "created") == 3
    assert setting_of(broker, "created", "message.timestamp.type") == "LogAppendTime"


def test_a_batch_does_not_wait_for_further_records(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_kafka, "_TOGETHER_MS", 3_600_000)
    sink = KafkaSink(config(broker, "at-once"))
    sink.send([numbered(seq) for seq in range(100)])
    wait_until(lambda: total(sink) == 100, "the events to be delivered")
    sink.close(30)
    assert read_all(broker.bootstrap, "at-once") == list(range(100))


def partitions_of(broker: Broker, topic: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        return len(admin.describe_topics([topic])[0]["partitions"])
    finally:
        admin.close()


def setting_of(broker: Broker, topic: str, name: str) -> str:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        return str(found["topic"][topic][name]["value"])
    finally:
        admin.close()


def test_uses_a_topic_that_is_there_already(broker: Broker) -> None:
    for seq in range(2):
        sink = KafkaSink(config(broker, "there"))
        sink.send([numbered(seq)])
        sink.close(30)

    assert read_all(broker.bootstrap, "there") == [0, 1]


def test_events_of_many_records_are_split_and_a_large_one_stands_alone(broker: Broker) -> None:
    sink = KafkaSink(config(broker, "large"))
    sink.send([numbered(0), numbered(1, padding=600_000), *(numbered(seq, padding=10_000) for seq in range(2, 100))])
    sink.close(30)

    assert read_all(broker.bootstrap, "large") == list(range(100))


def test_the_records_of_a_batch_share_round_trips_and_each_has_its_limit(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker", properties=COUNTED) as broker:
        sink = KafkaSink(config(broker, "together"))
        sink.send([numbered(seq, padding=10_000) for seq in range(400)])
        sink.close(30)
        assert read_all(broker.bootstrap, "together") == list(range(400))
        sizes = [len(value) for _, value in read_topic(broker.bootstrap, "together")]
        produces = sum(count for (api, _), count in broker.request_counts().items() if api == "Produce")
    assert max(sizes) <= RECORD_BYTES
    # Some records come too late to be sent with the others.
    assert 0 < produces <= 0.8 * len(sizes)


def test_a_record_above_the_topics_limit_is_split_and_only_an_event_too_large_alone_is_lost(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    create_topics(broker.bootstrap, ["small"], partitions=1, settings={"max.message.bytes": "4000"})
    sink = KafkaSink(config(broker, "small"))
    sink.send([incompressible(seq, 4000 if seq == 7 else 100) for seq in range(50)])
    wait_until(lambda: total(sink) == 50, "the first events to be finished")
    refusals = caplog.text.count("is lost and counted")
    sink.send([incompressible(seq) for seq in range(50, 100)])
    sink.close(60)

    assert read_all(broker.bootstrap, "small") == [seq for seq in range(100) if seq != 7]
    assert {reason: count for reason, count in sink.losses().items() if count} == {"sink_refused": 1}
    assert sink.counters()["sink_events"] == 99
    assert refusals == 1
    assert "An event of 7.9 KiB is lost and counted: it is too large for topic small" in caplog.text
    assert "Raise the topic's max.message.bytes" in caplog.text


@pytest.mark.parametrize(("stored", "refused"), [("producer", False), ("uncompressed", True)])
def test_a_topic_that_stores_records_unpacked_refuses_one_that_is_too_large_unpacked(
    broker: Broker, stored: str, refused: bool
) -> None:
    create_topics(broker.bootstrap, [stored], partitions=1, settings={"compression.type": stored})
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type="gzip", max_request_size=16 << 20)
    sent = producer.send(stored, bytes(8 << 20))
    with pytest.raises(MessageSizeTooLargeError) if refused else nullcontext():
        sent.get(30)
    producer.close()


def test_a_broker_that_is_killed_and_comes_back_costs_no_event_and_doubles_none(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafka_probe")
    sink = KafkaSink(config(broker, "outage"))
    assert sink.trouble() == "the brokers have not received any events yet"
    sink.send([numbered(0)])
    wait_until(lambda: sink.counters()["sink_events"] == 1, "the first event delivered")
    wait_until(lambda: sink.trouble() is None, "the sink to know that")
    # The kill hits a record on its way: its answer is lost, whether it was written or not.
    for seq in range(1, 200):
        sink.send([numbered(seq, padding=50_000)])
        if seq == 20:
            broker.kill()
    wait_until(lambda: "do not accept events" in caplog.text, "a warning")
    assert sink.trouble() == "the brokers do not accept events; see the log"
    broker.start()
    for seq in range(200, 220):
        sink.send([numbered(seq)])
    sink.close(60)

    assert read_all(broker.bootstrap, "outage") == list(range(220))
    assert total(sink) == 220
    assert set(sink.losses().values()) == {0}
    assert caplog.text.count("do not accept events") == 1
    assert caplog.text.count("accepts events again") == 1
    assert sink.trouble() is None


def test_what_exceeds_the_buffer_during_an_outage_is_counted_and_the_oldest_is_kept(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "late")
    sink = KafkaSink(config(broker, "bounded", sink_buffer_bytes=50_000))
    for seq in range(100):
        sink.send([numbered(seq, padding=900)])
    assert sink.counters()["sink_waiting_bytes"] <= 50_000
    with broker:
        sink.close(60)
        arrived = read_all(broker.bootstrap, "bounded")

    assert 40 < len(arrived) < 60
    assert arrived == list(range(len(arrived)))
    assert sink.losses()["sink_buffer_full"] == 100 - len(arrived)
    assert total(sink) == 100


def test_brokers_that_never_answer_cost_the_deadline_and_count_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_kafka, "CONNECT_TIMEOUT_MS", 5000)  # longer than the deadline
    sink = KafkaSink(Config(bootstrap_servers=f"127.0.0.1:{free_port()}"))
    sink.send([numbered(seq) for seq in range(10)])
    started = time.monotonic()
    sink.close(0.5)

    assert time.monotonic() - started < 3
    assert sink.losses()["sink_unsent_at_exit"] == 10
    assert total(sink) == 10


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with three listeners: one open, one that asks for a password, one with TLS."""

    broker: Broker
    sasl: str
    tls: str
    certificate: Path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Yield a broker where `agent` may do everything, while `guest` and `writer` may only connect.

    A test gives `writer` more rights.
    """
    directory = tmp_path_factory.mktemp("guarded")
    certificate, both = directory / "certificate.pem", directory / "both.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=lab -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", both, "-out", certificate], check=True, capture_output=True)
    both.write_text(both.read_text() + certificate.read_text())
    open_port, sasl_port, tls_port, controller_port = (free_port() for _ in range(4))
    advertised = f"PLAINTEXT://127.0.0.1:{open_port},SASL://127.0.0.1:{sasl_port},TLS://127.0.0.1:{tls_port}"
    properties = {
        "listeners": f"{advertised},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": advertised,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_agent="right" user_guest="right" user_writer="right";',
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(both),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:agent",
    }
    with Broker(directory / "broker", port=open_port, properties=properties) as running:
        yield Guarded(running, f"127.0.0.1:{sasl_port}", f"127.0.0.1:{tls_port}", certificate)


def credentials(servers: str, user: str, password: str) -> Config:
    return Config(
        bootstrap_servers=servers,
        topic="guarded",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=user,
        sasl_plain_password=password,
    )


def test_a_user_with_a_password_may_write(guarded: Guarded) -> None:
    sink = KafkaSink(credentials(guarded.sasl, "agent", "right"))
    sink.send([numbered(seq) for seq in range(5)])
    sink.close(30)

    assert read_all(guarded.broker.bootstrap, "guarded") == list(range(5))
    assert reach(credentials(guarded.sasl, "agent", "right")) == "topic guarded exists"


def test_describe_and_write_are_enough_where_the_topic_is_there(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    create_topics(guarded.broker.bootstrap, ["there"], partitions=1)
    topic = ResourcePattern(ResourceType.TOPIC, "there")
    rights = [
        ACL("User:writer", "*", right, ACLPermissionType.ALLOW, topic)
        for right in (ACLOperation.DESCRIBE, ACLOperation.WRITE)
    ]
    with KafkaAdminClient(bootstrap_servers=guarded.broker.bootstrap) as admin:
        assert not admin.create_acls(rights)["failed"]
    settings = credentials(guarded.sasl, "writer", "right").model_copy(update={"topic": "there"})
    wait_until(lambda: reach(settings) == "topic there exists", "the broker to have its controller's rights")
    sink = KafkaSink(settings)
    sink.send([numbered(7)])
    sink.close(30)
    assert sink.counters()["sink_events"] == 1
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("kafka_probe")]


def test_events_travel_over_tls_to_a_broker_whose_certificate_is_trusted(guarded: Guarded) -> None:
    sink = KafkaSink(
        Config(
            bootstrap_servers=guarded.tls,
            topic="over-tls",
            security_protocol="SSL",
            ssl_cafile=guarded.certificate,
        )
    )
    sink.send([numbered(seq) for seq in range(5)])
    sink.close(30)

    assert read_all(guarded.broker.bootstrap, "over-tls") == list(range(5))


def test_a_certificate_that_is_not_trusted_is_named(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_kafka, "CONNECT_TIMEOUT_MS", 1000)
    with pytest.raises(ConnectionError, match=r"(?i)certificate"):
        reach(Config(bootstrap_servers=guarded.tls, security_protocol="SSL"))


def test_a_topic_that_may_not_be_written_is_logged_once_and_counted(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    sink = KafkaSink(credentials(guarded.sasl, "guest", "right"))
    for seq in range(3):
        sink.send([numbered(seq)])
    wait_until(lambda: sink.losses()["sink_refused"] == 3, "three refused events")
    assert sink.trouble() == "the topic refuses the events; see the log"
    sink.close(10)

    assert total(sink) == 3
    assert caplog.text.count("refuses them") == 1
    assert "Authorization" in caplog.text


def test_a_wrong_password_is_a_warning_that_names_the_user(
    guarded: Guarded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_kafka, "CONNECT_TIMEOUT_MS", 1000)
    sink = KafkaSink(credentials(guarded.sasl, "agent", "wrong"))
    sink.send([numbered(0)])
    wait_until(lambda: "do not accept events" in caplog.text, "a warning", timeout_s=30)
    sink.close(0)

    assert "SASL_PLAINTEXT as agent: " in caplog.text
    assert "wrong" not in caplog.text
    assert total(sink) == 1
