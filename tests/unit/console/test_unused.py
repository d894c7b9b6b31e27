"""The command `unused`: topics without a reader, among those that exist, as far as brokers were watched."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient
from kafka.errors import KafkaConnectionError

from kafka_probe.errors import StartError, UsageError
from kafka_probe_console import cluster_topics
from kafka_probe_console.cluster_topics import Cluster, ClusterTopic
from kafka_probe_console.period import Period
from kafka_probe_console.tables import opened
from kafka_probe_console.unused_command import topics_without_reader, unused
from kafka_probe_console.views import Selection, answer
from kafka_probe_console.watched_brokers import watched_brokers
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, asked
from tests.lab.processes import free_port

TIME = FirstUse()
WATCHED, BEHIND_NAT, UNWATCHED, SILENT, ENCRYPTED, LOSSY, RARE = range(1, 8)
BROKERS = {
    WATCHED: ("10.0.0.1", 9092),
    BEHIND_NAT: ("192.0.2.2", 9092),
    UNWATCHED: ("10.0.0.3", 9092),
    SILENT: ("10.0.0.4", 9092),
    ENCRYPTED: ("::1", 9093),
    LOSSY: ("10.0.0.6", 9092),
    RARE: ("10.0.0.7", 9092),
}


def traffic(topic: str, api: str, client: str | None, **of: object) -> dict[str, Any]:
    """Return a row of traffic of a client that an agent at the broker saw ten minutes ago."""
    window = {"window_start": TIME.ago(minutes=11), "window_end": TIME.ago(minutes=10)}
    sums = {"requests": 10, "records": 10, "record_bytes": 1000}
    return {**window, **sums, "level": "topic", "side": "server", "topic": topic, "api": api, "client_id": client, **of}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of the brokers' nodes: one reported for half of the last hour, one no longer does."""
    path = tmp_path_factory.mktemp("tables")
    lately, no_data = TIME.ago(minutes=5), {"record_bytes": 0, "records": 0}
    write_rows(
        path,
        "opens",
        [
            end("server", "01", "x", lately),
            end("server", "02", "x", lately, local="10.0.0.2:9092", node="broker-2", flow_id="f2"),
            end("client", "03", "x", lately, peer="192.0.2.2:9092", flow_id="f2"),
            end("client", "04", "x", lately, peer="10.0.0.3:9092", flow_id="f3"),
            end("server", "05", "x", lately, local="10.0.0.4:9092", node="broker-4"),
            end("server", "06", "x", lately, local="[::1]:9093", node="broker-5"),
            end("server", "07", None, lately, local="[::1]:9093", node="broker-5", opaque="tls"),
            end("client", "08", None, lately, opaque="tls"),
            end("server", "09", "x", lately, local="10.0.0.6:9092", node="broker-6"),
            end("server", "0a", "x", lately, local="10.0.0.7:9092", node="broker-7"),
        ],
    )
    seldom = {"local": "10.0.0.7:9092", "node": "broker-7", "opaque": "unknown"}
    write_rows(path, "closes", [end("server", "0b", None, TIME.ago(days=20), **seldom)])
    minutes = {"broker-1": range(61), "broker-2": range(31), "broker-4": range(10, 61), "broker-5": range(61)}
    minutes |= {"broker-6": range(61), "broker-7": range(0, 61, 5)}  # the last one's pauses are longer
    losses = {"broker-1": {"topics_shed": 0, "gap": 7}, "broker-6": {"topics_shed": 1}}
    write_rows(
        path,
        "agents",
        [
            {"node": node, "agent_id": node, "received_ts": at, "ts": at, "losses": losses.get(node)}
            for node, of_node in minutes.items()
            for at in (TIME.ago(minutes=minute) for minute in of_node)
        ],
    )
    write_rows(
        path,
        "traffic",
        [
            traffic("read", "Produce", "writer"),
            traffic("read", "Fetch", "reader"),
            traffic("no new records", "Fetch", "reader", **no_data),
            traffic("share", "ShareFetch", "reader"),
            traffic("replicated", "Produce", "writer", requests=5, record_bytes=700),
            traffic("replicated", "Fetch", "broker-2-fetcher-0"),
            traffic("replicated", "Fetch", "console-consumer", group="console-consumer-1"),
            traffic("refused", "Produce", "writer", refused_bytes=1000, refused_records=10),
            traffic("refused", "Fetch", "reader", **no_data, errors={"29": 10}),
            traffic("mirrored", "Produce", "writer"),
            traffic("mirrored", "Fetch", "a->b|MirrorSourceConnector-0|replication-consumer"),
            traffic("sunk", "Fetch", "connector-consumer-sink-0", group="connect-sink"),
            traffic("sunk and read", "Fetch", "connector-consumer-sink-0", group="connect-sink"),
            traffic("sunk and read", "Fetch", None),
            traffic("sunk by a group", "Fetch", None, group="connect-sink"),
            traffic("id of by id", "Fetch", "reader"),
            traffic("like a replica", "Fetch", "broker-prices-fetcher-1"),
            traffic("old", "Fetch", "reader", window_start=TIME.ago(days=2), window_end=TIME.ago(days=2)),
        ],
    )
    return path


def found_of(tables: Path, topics: Mapping[str, set[int]], since: timedelta | None = None) -> dict[str, dict[str, Any]]:
    """Return the rows by topic. topics: the brokers of each; since: the age of the period's begin, else one hour."""
    cluster = Cluster(
        [ClusterTopic(name, f"id of {name}", 3, frozenset(brokers)) for name, brokers in topics.items()], BROKERS
    )
    period = Period(TIME.now - (since or timedelta(hours=1)))
    with opened(str(tables)) as opened_tables:
        found = answer(topics_without_reader(opened_tables, period, cluster), Selection(100), opened_tables)
    rows = [dict(zip((column.name for column in found.columns), row, strict=True)) for row in found.rows]
    return {row["topic"]: row for row in rows}


def test_a_topic_with_a_reader_is_not_printed_and_others_have_a_state(tables: Path) -> None:
    read = ("read", "no new records", "share", "sunk and read", "by id", "like a replica")
    others = ("replicated", "refused", "mirrored", "sunk", "sunk by a group", "never")
    found = found_of(tables, {name: {WATCHED} for name in (*read, *others)})
    states = {name: row["state"] for name, row in found.items()}
    assert states == {
        "replicated": "unread",
        "refused": "not known",
        "mirrored": "copied",
        "sunk": "copied",
        "sunk by a group": "copied",
        "never": "unused",
    }
    assert found["refused"]["reason"] == "clients that read it get errors"
    assert found["mirrored"]["copied_by"] == "a->b|MirrorSourceConnector-0|replication-consumer"
    replicated = found["replicated"]
    assert (replicated["written_bytes"], replicated["writers"], replicated["partitions"]) == (700, 1, 3)
    assert replicated["last"] == round(TIME.ago(minutes=10).timestamp() * 1e6)


def test_only_the_period_counts(tables: Path) -> None:
    assert found_of(tables, {"old": {WATCHED}})["old"]["state"] == "unused"
    assert found_of(tables, {"old": {WATCHED}}, timedelta(days=3)) == {}


@pytest.mark.parametrize(
    ("brokers", "reason"),
    [
        ({WATCHED, UNWATCHED}, "no agent watches the broker at 10.0.0.3:9092"),
        ({SILENT}, "the agent of broker-4, with the broker at 10.0.0.4:9092, is silent"),
        (
            {WATCHED, ENCRYPTED},
            "broker-5, with the broker at ::1:9093, has connections that are encrypted or not decoded",
        ),
        ({LOSSY}, "the agent of broker-6, with the broker at 10.0.0.6:9092, left out topics: see `kafka-probe agents`"),
        ({WATCHED, -1}, "a broker of a partition, or its leader, is away"),
        (set(), "a broker of a partition, or its leader, is away"),
        ({WATCHED, 99}, "a broker of a partition, or its leader, is away"),
    ],
)
def test_a_topic_whose_brokers_are_not_all_watched_is_not_known(tables: Path, brokers: set[int], reason: str) -> None:
    found = found_of(tables, {"never": brokers, "replicated": brokers, "read": brokers})
    assert {name: (row["state"], row["reason"]) for name, row in found.items()} == {
        "never": ("not known", reason),
        "replicated": ("not known", reason),
    }


def test_a_broker_is_watched_at_its_own_address_and_at_the_one_that_its_clients_use(tables: Path) -> None:
    found = found_of(tables, {"one": {WATCHED}, "two": {WATCHED, BEHIND_NAT}})
    assert found["one"]["state"] == "unused"
    assert found["one"]["watched_percent"] == pytest.approx(100, abs=0.1)
    assert found["two"]["watched_percent"] == pytest.approx(50, abs=0.1)
    assert found["two"]["reason"] == "the broker at 192.0.2.2:9092 was watched for 50 % of the period"
    found = found_of(tables, {"two": {WATCHED, BEHIND_NAT}}, timedelta(minutes=30))
    assert found["two"]["state"] == "unused"


def test_connections_that_are_not_decoded_count_whenever_they_were(tables: Path) -> None:
    assert found_of(tables, {"never": {RARE}})["never"]["state"] == "unused"
    reason = found_of(tables, {"never": {RARE}}, timedelta(days=30))["never"]["reason"]
    assert reason == "broker-7, with the broker at 10.0.0.7:9092, has connections that are encrypted or not decoded"


def test_a_client_that_reads_topics_without_a_name_may_read_any(tmp_path: Path) -> None:
    rows = [traffic("x", "Fetch", "reader", node="broker-1"), traffic("x", "Fetch", None, level="api", node="broker-1")]
    write_rows(tmp_path, "traffic", rows)
    write_rows(tmp_path, "opens", [end("server", "01", "x", TIME.ago(minutes=5))])
    reported = {"node": "broker-1", "agent_id": "b"}
    ages = (TIME.ago(minutes=minute) for minute in range(61))
    write_rows(tmp_path, "agents", [{**reported, "received_ts": at, "ts": at} for at in ages])
    reason = found_of(tmp_path, {"never": {WATCHED}})["never"]["reason"]
    assert reason == "a client of broker-1, with the broker at 10.0.0.1:9092, read topics that are not known"


def test_a_broker_that_two_nodes_have_is_none_of_both(tmp_path: Path) -> None:
    write_rows(tmp_path, "traffic", [traffic("x", "Fetch", "reader")])
    ends = [end("server", "01", "x", TIME.ago(minutes=5)), end("server", "02", "x", TIME.ago(minutes=5), node="evil")]
    write_rows(tmp_path, "opens", ends)
    reason = found_of(tmp_path, {"never": {WATCHED}})["never"]["reason"]
    assert reason == "several nodes have the broker at 10.0.0.1:9092: broker-1, evil"


def test_without_reports_of_agents_no_broker_is_watched(tmp_path: Path, tables: Path) -> None:
    write_rows(tmp_path, "opens", [end("server", "01", "x", TIME.ago(minutes=5))])
    with opened(str(tmp_path)) as without_agents, opened(str(tables)) as complete:
        period = Period()
        assert watched_brokers(complete, period, BROKERS)[WATCHED].problem is None
        found = watched_brokers(without_agents, period, {**BROKERS, 7: ("no-such-host.invalid", 9092)})
    assert found[WATCHED].problem == "the agent of broker-1, with the broker at 10.0.0.1:9092, is silent"
    assert found[7].problem == (
        "the broker at no-such-host.invalid:9092 has no address on this machine: run the command where clients run"
    )


def test_the_configuration_file_has_the_brokers_and_their_settings(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kafka-probe.toml"
    file.write_text(f"bootstrap_servers = ['127.0.0.1:{free_port()}']\ntables = '{tables}'\n")
    with pytest.raises(StartError, match="did not name their topics"):
        asked(unused, tables, "--config", str(file))
    monkeypatch.setenv("KAFKA_PROBE_CONFIG", str(file))
    with pytest.raises(StartError, match="did not name their topics"):
        CliRunner().invoke(unused, [], catch_exceptions=False)


def test_the_security_settings_of_the_file_are_used(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kafka-probe.toml"
    settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "console"}
    lines = (f"{name} = '{value}'" for name, value in settings.items())
    file.write_text("\n".join(("bootstrap_servers = ['kafka-1:9093']", "sasl_plain_password = 'x'", *lines)))
    used: dict[str, object] = {}

    def refused(**given: object) -> KafkaAdminClient:
        used.update(given)
        raise KafkaConnectionError

    monkeypatch.setattr(cluster_topics, "KafkaAdminClient", refused)
    with pytest.raises(StartError, match="kafka-1:9093 did not name their topics"):
        asked(unused, tables, "--config", str(file))
    assert {name: used[name] for name in settings} == settings


def test_brokers_that_do_not_answer_and_missing_ones_are_errors(tables: Path) -> None:
    with pytest.raises(UsageError, match="--bootstrap-servers"):
        asked(unused, tables)
    with pytest.raises(StartError, match="did not name their topics"):
        asked(unused, tables, "--bootstrap-servers", f"127.0.0.1:{free_port()}")
