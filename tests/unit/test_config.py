"""One configuration from flags, variables, a file and defaults; an error names the source of the bad value."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pydantic import SecretStr

from kafka_probe.config import Config, flag_of, is_secret, load, other_variables
from kafka_probe.errors import UsageError
from kafka_probe.setting_types import Address, ExchangeSelection


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "probe.toml"


def test_a_flag_wins_over_a_variable_over_the_file_over_the_command_over_the_default(
    toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml.write_text('topic = "file"\nnode = "file"\nside = "server"\n')
    monkeypatch.setenv("KAFKA_PROBE_TOPIC", "variable")
    monkeypatch.setenv("KAFKA_PROBE_NODE", "variable")
    command = {"side": "client", "log_level": "warning"}

    config = load({"topic": "flag", "node": None}, toml, command)

    assert config.topic == "flag"
    assert config.node == "variable"
    assert config.side == "server"
    assert config.log_level == "warning"
    assert config.interval_s == 5.0


def test_the_node_is_the_kubernetes_node_or_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert load({}).node == socket.gethostname()
    monkeypatch.setenv("NODE_NAME", "worker-7")
    assert load({}).node == "worker-7"


def test_empty_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PROBE_PROTS", "")
    monkeypatch.setenv("KAFKA_PROBE_TOPIC", "")
    assert load({}).topic == "kafka-probe.events"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("KAFKA_PROBE_PROTS", "KAFKA_PROBE_PORTS"),
        ("KAFKA_PROBE_PORT", "KAFKA_PROBE_PORTS"),
        ("KAFKA_PROBE_BOOTSTRAP_SERVER", "KAFKA_PROBE_BOOTSTRAP_SERVERS"),
        ("kafka_probe_topics", "KAFKA_PROBE_TOPIC"),
        ("KAFKA_PROBE_CONFIGS", "KAFKA_PROBE_CONFIG"),
    ],
)
def test_a_variable_that_is_almost_a_setting_is_refused_with_its_name(
    written: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(written, "1")
    with pytest.raises(UsageError, match=rf"^Unknown variable {written}: did you mean {meant}\?$"):
        load({})


def test_variables_of_kubernetes_and_of_the_pipeline_are_left_alone_and_others_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What Kubernetes 1.34 sets for a Service kafka-probe with a port named http, and for one named kafka-probe-agents.
    for service in ("KAFKA_PROBE", "KAFKA_PROBE_AGENTS"):
        monkeypatch.setenv(f"{service}_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv(f"{service}_SERVICE_PORT", "9465")
        monkeypatch.setenv(f"{service}_SERVICE_PORT_HTTP", "9465")
        monkeypatch.setenv(f"{service}_PORT", "tcp://10.0.0.1:9465")
        monkeypatch.setenv(f"{service}_PORT_9465_TCP", "tcp://10.0.0.1:9465")
        monkeypatch.setenv(f"{service}_PORT_9465_TCP_PROTO", "tcp")
        monkeypatch.setenv(f"{service}_PORT_9465_TCP_PORT", "9465")
        monkeypatch.setenv(f"{service}_PORT_9465_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("KAFKA_PROBE_PIPELINE_TOPIC", "x")
    monkeypatch.setenv("KAFKA_PROBE_CONFIG", "/etc/kafka-probe.toml")
    monkeypatch.setenv("KAFKA_PROBE_TABLES", "kafka-probe-output")
    monkeypatch.setenv("KAFKA_PROBE_TOPIC", "events")
    assert other_variables() == {}
    monkeypatch.setenv("KAFKA_PROBE_IMAGE_TAG", "1")
    assert [*other_variables()] == ["KAFKA_PROBE_IMAGE_TAG"]
    assert load({}).topic == "events"


@pytest.mark.parametrize(
    ("written", "ports"),
    [("9093,9092,9092", (9092, 9093)), ("auto", "auto"), (9094, (9094,)), ([9093, 9092], (9092, 9093))],
)
def test_ports_are_numbers_in_any_form_or_auto(written: object, ports: object) -> None:
    assert load({"ports": written}).ports == ports


def test_brokers_without_a_port_have_that_of_kafka() -> None:
    written = "kafka-1, kafka-2:9093, 10.0.0.1, [2001:db8::1], [2001:db8::2]:9093, SSL://kafka-3, SSL://kafka-4:9094"
    assert load({"bootstrap_servers": written}).bootstrap_servers == (
        "kafka-1:9092",
        "kafka-2:9093",
        "10.0.0.1:9092",
        "[2001:db8::1]:9092",
        "[2001:db8::2]:9093",
        "SSL://kafka-3:9092",
        "SSL://kafka-4:9094",
    )


@pytest.mark.parametrize(
    ("written", "loopback"),
    [
        ("127.0.0.1:9465", True),
        ("127.8.0.1:1", True),
        ("[::1]:65535", True),
        ("localhost:9465", True),
        ("0.0.0.0:9465", False),
        ("[::]:9465", False),
        ("[::ffff:127.0.0.1]:9465", False),
        ("10.0.0.1:9465", False),
        ("localhost.example:9465", False),
    ],
)
def test_an_address_to_listen_on_is_read_and_written_in_one_form(written: str, loopback: bool) -> None:
    address = load({"listen": written}).listen
    assert isinstance(address, Address)
    assert str(address) == written
    assert address.loopback is loopback


def test_listening_may_be_off_and_is_on_for_this_host_only() -> None:
    assert load({"listen": "off"}).listen == "off"
    assert load({}).listen == Address("127.0.0.1", 9465)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("off", ExchangeSelection("off")),
        ("all", ExchangeSelection("all")),
        ("errors", ExchangeSelection("errors")),
        ("slower:1.5", ExchangeSelection("slower", slower_than_us=1500)),
        ("1/100", ExchangeSelection("one_in", one_in=100)),
    ],
)
def test_request_events_are_read_and_written_in_one_form(written: str, meant: ExchangeSelection) -> None:
    assert load({"requests": written}).requests == meant
    assert str(meant) == written


def test_sizes_may_have_a_unit() -> None:
    assert load({"ring_size_bytes": "4MiB", "sink_buffer_bytes": "65536"}).ring_size_bytes == 4 << 20


def test_security_settings_are_those_that_were_given_ready_for_kafka_python(
    toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml.write_text('sasl_mechanism = "PLAIN"\nssl_cafile = "/ca.pem"\nssl_check_hostname = false\n')
    monkeypatch.setenv("KAFKA_PROBE_SASL_PLAIN_PASSWORD", "secret")

    config = load({"security_protocol": "SASL_SSL", "sasl_plain_username": "agent"}, toml)

    assert config.security() == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "agent",
        "sasl_plain_password": "secret",
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
    }
    assert "secret" not in repr(config)


def test_every_security_setting_is_one_that_kafka_python_knows() -> None:
    from kafka import KafkaAdminClient, KafkaProducer

    named = {name for name in Config.model_fields if name.startswith(("security_", "sasl_", "ssl_"))}
    assert named
    assert named <= KafkaProducer.DEFAULT_CONFIG.keys()
    assert named <= KafkaAdminClient.DEFAULT_CONFIG.keys()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ports", "70000", "between 1 and 65535"),
        ("ports", "broker", "between 1 and 65535"),
        ("ports", "", "between 1 and 65535"),
        ("bootstrap_servers", "kafka-1:", "must be host:port"),
        ("bootstrap_servers", "kafka-1:9092,kafka-2:909x", "must be host:port"),
        ("bootstrap_servers", "kafka-1:70000", "must be host:port"),
        ("bootstrap_servers", "http://kafka-1:9092", "must be host:port"),
        ("ring_size_bytes", "3MiB", "power of two"),
        ("ring_size_bytes", "1", "power of two"),
        ("interval_s", "0", "greater than 0"),
        ("interval_s", "soon", "valid number"),
        ("open_interval_s", "0", "greater than 0"),
        ("requests", "slower:fast", "slower:MILLISECONDS"),
        ("requests", "1/0", "1/N"),
        ("sink", "file", "'kafka' or 'stdout'"),
        ("topic", "not a topic", "match pattern"),
        ("topic_partitions", "0", "greater than 0"),
        ("node", "", "at least 1 character"),
        ("listen", "9465", "host:port"),
        ("listen", ":9465", "host:port"),
        ("listen", "127.0.0.1:0", "host:port"),
        ("listen", "::1:9465", "host:port"),
        ("listen_token", "", "at least 1"),
        ("metrics_series", "0", "greater than 0"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_flag(name: str, value: str, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        load({name: value})
    assert str(error.value).startswith(f"{flag_of(name)}: ")
    assert reason in str(error.value)


def test_a_bad_value_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PROBE_TOPIC_PARTITIONS", "many")
    with pytest.raises(UsageError, match=r"^KAFKA_PROBE_TOPIC_PARTITIONS: .*valid integer"):
        load({})


def test_a_bad_value_names_its_key_and_file_and_every_mistake_is_reported(toml: Path) -> None:
    toml.write_text("interval_s = -1\nports = [0]\n")
    with pytest.raises(UsageError) as error:
        load({}, toml)
    named = {line.partition(":")[0] for line in str(error.value).splitlines()}
    assert named == {f"interval_s in {toml}", f"ports in {toml}"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"topik = 'x'", r"Unknown key topik in .*: did you mean topic\?"),
        (b"tabels = 'x'", r"Unknown key tabels in .*: did you mean tables\?"),
        (b"zzz = 1", r"Unknown key zzz in .*: `kafka-probe run --help` lists"),
        (b"topic = x", r"is not valid TOML: .*line 1"),
        (b"topic = '\xff'", r"is not valid TOML"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(toml: Path, text: bytes, message: str) -> None:
    toml.write_bytes(text)
    with pytest.raises(UsageError, match=message):
        load({}, toml)


def test_the_agent_ignores_where_the_tables_are(toml: Path) -> None:
    toml.write_text("topic = 'events'\ntables = '/var/lib/tables'\n")
    assert load({}, toml).topic == "events"


def test_a_file_that_is_not_there_is_named(toml: Path) -> None:
    with pytest.raises(UsageError, match=rf"{toml} cannot be read: No such file"):
        load({}, toml)


def test_a_bad_secret_is_not_repeated(toml: Path) -> None:
    toml.write_text('sasl_plain_password = ["hush"]\n')
    with pytest.raises(UsageError) as error:
        load({}, toml)
    assert "hush" not in str(error.value)


def test_secrets_are_exactly_the_fields_with_a_password_or_a_token() -> None:
    secret = {name for name, field in Config.model_fields.items() if is_secret(field)}
    assert secret == {name for name in Config.model_fields if "password" in name or "token" in name}
    assert isinstance(load({"ssl_password": "x"}).ssl_password, SecretStr)
