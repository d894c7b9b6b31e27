"""The command `admin`: who changed a cluster, and with which result."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import KafkaProbeError
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_console.admin_command import admin
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
ADMIN, CREATE, DELETE, CONFIGS = "adminclient-1", "CreateTopics", "DeleteTopics", "IncrementalAlterConfigs"
KEYS = {CREATE: ApiKey.CREATE_TOPICS, DELETE: ApiKey.DELETE_TOPICS, CONFIGS: ApiKey.INCREMENTAL_ALTER_CONFIGS}
KEYS |= {"DeleteGroups": ApiKey.DELETE_GROUPS, "Metadata": ApiKey.METADATA}


def change(side: str, api: str, number: int, *topics: str, flow: str = "f1", **of: object) -> dict[str, Any]:
    """Return a request of ten minutes ago, with the correlation id `number`, as one end reports it."""
    ends: dict[str, dict[str, Any]] = {
        "client": {"node": "node-1", "local": "10.57.1.11:4000", "peer": "192.0.2.1:9092"},
        "server": {"node": "broker-1", "local": "10.0.0.1:9092", "peer": "10.57.2.2:4000"},
    }
    who = {
        "client": {"id": ADMIN, "software_name": "apache-kafka-java", "software_version": "4.0.0"},
        "workload": {"pid": 412, "comm": "java"},
    }
    what = {"api": api, "api_key": KEYS[api], "api_version": 5, "correlation_id": number, "status": "complete"}
    named = {"topics": [{"topic": name, "partition": 0, "error": 0} for name in topics], "response_bytes": 40}
    at = {"ts": TIME.now - timedelta(minutes=10, seconds=-number), "agent_id": side, "conn_id": flow}
    return {"side": side, "flow_id": flow, **ends[side], **who, **at, **what, **named, **of}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables with changes that were seen at both ends, and at one end only."""
    path = tmp_path_factory.mktemp("tables")
    rows = [
        change("client", CREATE, 1, "invoices", "orders"),
        change("server", CREATE, 1, "invoices", "orders"),
        change("client", DELETE, 2, "orders", "orders", error_names={"TOPIC_AUTHORIZATION_FAILED": 2}),
        change("server", DELETE, 2, "orders", flow="f2", response_bytes=None),
        change("client", CONFIGS, 3, status="header_only"),
        change("server", "DeleteGroups", 4, group="billing", flow="f3"),
        change("client", "Metadata", 5, "orders"),
        change("client", CREATE, 6, "own", client={"id": "kafka-probe-agent"}),
        change("client", DELETE, 7, "gone", response_bytes=None, flow="f4"),
        change("server", DELETE, 7, "gone", flow="f4", latency_us=2000),
    ]
    write_rows(path, "requests", rows)
    return path


def test_each_change_counts_once_with_what_was_changed_and_its_result(tables: Path) -> None:
    found = answered(admin, tables)
    assert [(row["api"], row["topics"], row["group"], row["result"], row["side"]) for row in found] == [
        (DELETE, "gone", None, "ok", "client"),  # the client did not wait for the response
        (CREATE, "own", None, "ok", "client"),
        ("DeleteGroups", None, "billing", "ok", "server"),
        (CONFIGS, None, None, None, "client"),
        (DELETE, "orders", None, "TOPIC_AUTHORIZATION_FAILED", "client"),
        (DELETE, "orders", None, "no response seen", "server"),
        (CREATE, "invoices, orders", None, "ok", "client"),
    ]


def test_the_clients_end_names_process_and_node_and_the_brokers_end_its_address(tables: Path) -> None:
    of_client, of_broker = (answered(admin, tables, "--filter", f"api = {api}")[-1] for api in (CREATE, "DeleteGroups"))
    assert (of_client["process"], of_client["node"], of_client["workload"]) == ("java[412]", "node-1", "java")
    assert (of_client["address"], of_client["broker"]) == ("10.57.1.11:4000", "192.0.2.1:9092")
    assert (of_client["client"], of_client["library"]) == (ADMIN, "apache-kafka-java 4.0.0")
    assert (of_broker["process"], of_broker["node"], of_broker["workload"]) == (None, None, None)
    assert (of_broker["address"], of_broker["broker"]) == ("10.57.2.2:4000", "10.0.0.1:9092")


def test_a_change_that_failed_in_part_or_was_cut_says_so(tmp_path: Path) -> None:
    failed = {"topic": "unknown", "partition": None, "error": 3}
    rows = [
        change("client", DELETE, 1, topics=[{**failed, "topic": "orders", "error": 0}, failed], error_names={"X": 1}),
        change("client", DELETE, 2, topics=[failed], error_names={"X": 1}),
        change("client", CREATE, 3, "orders", status="truncated"),
        # With partitions in the request, as of a manual assignment.
        change("client", CREATE, 4, topics=[{**failed, "partition": 0, "error": 0}, failed], error_names={"X": 1}),
    ]
    write_rows(tmp_path, "requests", rows)
    assert [row["result"] for row in answered(admin, tmp_path)] == ["X", "(truncated)", "X", "partly: X"]


def test_a_correlation_id_that_is_used_again_hides_no_change(tmp_path: Path) -> None:
    names = ("junk", "orders", "more junk")
    of_client = [change("client", DELETE, 7, "junk", ts=TIME.now - timedelta(minutes=10))]
    of_broker = [
        change("server", DELETE, 7, name, ts=TIME.now - timedelta(minutes=10 - number))
        for number, name in enumerate(names)
    ]
    write_rows(tmp_path, "requests", [*of_client, *of_broker])
    found = [(row["topics"], row["side"]) for row in answered(admin, tmp_path)]
    assert found == [("more junk", "server"), ("orders", "server"), ("junk", "client")]


def test_a_client_cannot_change_what_its_broker_reports(tmp_path: Path) -> None:
    rows = [
        change("client", DELETE, 1, "orders", error_names={"TOPIC_AUTHORIZATION_FAILED": 1}),
        change("server", DELETE, 1, "orders"),
        change("client", "DeleteGroups", 2, group="own"),
        change("server", "DeleteGroups", 2, group="billing"),
    ]
    write_rows(tmp_path, "requests", rows)
    found = {(row["topics"], row["group"], row["result"], row["side"]) for row in answered(admin, tmp_path)}
    assert found == {
        (None, "billing", "ok", "server"),
        (None, "own", "ok", "client"),
        ("orders", None, "ok", "client"),
    }


def test_without_a_change_it_names_the_nearest(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(KafkaProbeError, match=r"No administrative request .* matches\. The nearest .* was at "):
        answered(admin, tables, "--since", "1m")
    write_rows(tmp_path, "traffic", [{"ts": TIME.now, "window_start": TIME.now}])
    with pytest.raises(KafkaProbeError, match=r"^The tables have no request that changed a cluster"):
        answered(admin, tmp_path)


def test_documented_commands_run(tables: Path) -> None:
    for flags in documented_flags("admin", "README.md", "docs/guide/answers.md"):
        assert asked(admin, tables, *flags).exit_code == 0


def test_the_text_names_who_did_what(tables: Path) -> None:
    lines = asked(admin, tables, "--filter", f"api = {CREATE} and client = {ADMIN}").stdout.splitlines()
    assert "CreateTopics" in lines[1]
    assert "invoices, orders" in lines[1]
    assert ADMIN in lines[1]
