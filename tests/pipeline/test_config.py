from __future__ import annotations

import pytest
from click.testing import CliRunner

from kafka_probe.errors import UsageError
from kafka_probe_pipeline.cli import cli
from kafka_probe_pipeline.config import VARIABLE_PREFIX, PipelineConfig, flag_of, load


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load({}).window == 60
    monkeypatch.setenv("KAFKA_PROBE_PIPELINE_WINDOW", "10")
    assert load({"window": None}).window == 10
    assert load({"window": "5"}).window == 5


def test_kafka_options_of_the_variable_and_of_flags_reach_every_client_beside_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PROBE_PIPELINE_KAFKA_OPTION", '{"security.protocol": "SASL_SSL"}')
    config = load({"kafka_option": {"sasl.mechanism": "PLAIN"}, "bootstrap_servers": "b:9092"})
    assert config.kafka == {
        "client.id": "kafka-probe-pipeline",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "bootstrap.servers": "b:9092",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", "0"),
        ("bootstrap_servers", "kafka-1:0"),
        ("bootstrap_servers", "::1"),
        ("window", "soon"),
        ("trigger_interval", "-1"),
        ("once", "maybe"),
        ("output", ""),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_under_the_name_it_was_written(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"^{flag_of(name)}: .*\.$"):
        load({name: value})


@pytest.mark.parametrize("seconds", ["29.9", "9000"])  # --agent-silent is 30 s, --open-limit 9,000 s
def test_run_refuses_a_closed_limit_that_is_not_between_the_limits_beside_it(seconds: str) -> None:
    flags = ["run", "--bootstrap-servers", "kafka-1:9092", "--closed-limit", seconds]
    result = CliRunner().invoke(cli, flags)
    assert isinstance(result.exception, UsageError)
    assert "--closed-limit" in str(result.exception)


def test_brokers_without_a_port_have_that_of_kafka_which_the_java_client_refuses_to_guess() -> None:
    config = load({"bootstrap_servers": "localhost, kafka-1:9093,[::1],SSL://kafka-2,"})
    assert config.bootstrap_servers == "localhost:9092,kafka-1:9093,[::1]:9092,SSL://kafka-2:9092"


def test_a_variable_that_is_almost_a_setting_is_refused_and_an_unknown_one_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("SERVICE_HOST", "PORT", "PORT_4040_TCP", "UI_SVC_SERVICE_PORT_DRIVER"):
        monkeypatch.setenv(f"KAFKA_PROBE_PIPELINE_{name}", "x")
    monkeypatch.setenv("KAFKA_PROBE_PROTS", "x")
    load({})
    assert not caplog.text
    monkeypatch.setenv("KAFKA_PROBE_PIPELINE_IMAGE", "x")
    load({})
    assert "_IMAGE is not a setting and is ignored; the most similar one is KAFKA_PROBE_PIPELINE_" in caplog.text
    monkeypatch.setenv("KAFKA_PROBE_PIPELINE_OUTPT", "/data")
    with pytest.raises(UsageError, match=r"_OUTPT: did you mean KAFKA_PROBE_PIPELINE_OUTPUT\?$"):
        load({})


def test_a_bad_variable_is_named_as_such_and_its_value_stays_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PROBE_PIPELINE_KAFKA_OPTION", "password")
    with pytest.raises(UsageError, match="kafka_option") as refused:
        load({})
    assert "password" not in str(refused.value)


def test_help_names_every_setting_by_flag_and_variable() -> None:
    text = CliRunner().invoke(cli, ["run", "--help"]).output
    for name, field in PipelineConfig.model_fields.items():
        assert flag_of(name) in text
        assert VARIABLE_PREFIX + name.upper() in text
        assert field.description
