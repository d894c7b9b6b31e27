"""The command `upgrade`: which clients use versions of APIs that a release of Kafka does not support."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.errors import UsageError
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.schemas import apis
from kafka_probe_console.kafka_releases import release, releases
from kafka_probe_console.upgrade_command import upgrade
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
FINE = "fine as far as seen"


def traffic(client: str, api: ApiKey, version: int, side: str = "client", **of: Any) -> dict[str, Any]:
    """Return a row of traffic of a minute, which ended ten minutes ago."""
    window = {"window_start": TIME.now - timedelta(minutes=11), "window_end": TIME.now - timedelta(minutes=10)}
    kind = {
        "api": apis()[api].name,
        "api_key": api,
        "api_version": version,
        "level": "api",
        "requests": 50,
        "responses": 50,
    }
    comm = {"client": "python", "server": "java"}[side]
    return {**window, **kind, "cluster_id": "new", "side": side, "comm": comm, "client_id": client, **of}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of two clusters, of which the old one supports only Fetch 3 and Produce 2."""
    path = tmp_path_factory.mktemp("tables")
    library: dict[str, Any] = {"software_name": "librdkafka", "software_version": "2.3.0"}
    earlier: dict[str, Any] = {"window_start": TIME.ago(days=9), "window_end": TIME.ago(days=8)}
    write_rows(
        path,
        "traffic",
        [
            traffic("modern", ApiKey.FETCH, 13),
            traffic("modern", ApiKey.FETCH, 13, "server"),
            traffic("modern", ApiKey.METADATA, 12, "server"),
            traffic("modern", ApiKey.PRODUCE, 9, cluster_id=None, **library),
            traffic("ancient", ApiKey.FETCH, 3),
            traffic("ancient", ApiKey.FETCH, 3, "server"),
            traffic("ancient", ApiKey.METADATA, 0),
            traffic("ancient", ApiKey.PRODUCE, 2, "server"),
            traffic("rdkafka", ApiKey.FETCH, 3),
            traffic("rdkafka", ApiKey.FETCH, 3, "server", requests=5000),
            traffic("rdkafka", ApiKey.FETCH, 3, "server", cluster_id="old"),
            traffic("repaired", ApiKey.FETCH, 2, software_name="sarama", software_version="1.20", **earlier),
            traffic("repaired", ApiKey.FETCH, 13, software_name="sarama", software_version="1.43"),
            traffic("held down", ApiKey.PRODUCE, 2, cluster_id="old", **library),
            traffic("held down", ApiKey.STREAMS_GROUP_HEARTBEAT, 0, cluster_id="old", **library),
            traffic("unknown", ApiKey.PRODUCE, 1, cluster_id="old"),
            traffic("of unknown cluster", ApiKey.PRODUCE, 1, cluster_id=None),
            *(traffic("of two", ApiKey.METADATA, 12, cluster_id=cluster) for cluster in ("new", "old")),
            traffic("of two", ApiKey.PRODUCE, 2, cluster_id=None),
            {**traffic("of no version", ApiKey.FETCH, 0), "api_version": None, "client_id": None},
            # What nobody answered, what was refused and what no release has shows nothing of a cluster or library.
            traffic("refused", ApiKey.PRODUCE, 9, cluster_id="old", errors={"35": 50}),
            traffic("unanswered", ApiKey.PRODUCE, 9, cluster_id="old", responses=0),
            traffic("newer", ApiKey.PRODUCE, 99, cluster_id="old", **library),
            traffic("broker", ApiKey.LEADER_AND_ISR, 4),
            traffic("kafka-probe-agent", ApiKey.PRODUCE, 0),
            traffic("modern", ApiKey.FETCH, 0, level="topic"),
        ],
    )
    encrypted = {"opaque": "tls", "found": "start"}
    ends = [
        *(end(side, side, None, TIME.ago(minutes=5), flow_id="a", **encrypted) for side in ("client", "server")),
        end("server", "2", None, TIME.ago(minutes=5), flow_id="b", **encrypted),
        end("client", "3", "modern", TIME.ago(minutes=5), flow_id="c", found="start"),
    ]
    write_rows(path, "opens", ends)
    return path


def statuses(tables: Path, *flags: str) -> set[tuple[str | None, ...]]:
    facts = ("client", "cluster", "side", "status", "reason")
    return {tuple(row[name] for name in facts) for row in answered(upgrade, tables, *flags)}


def test_a_client_blocks_where_its_cluster_offers_what_it_does_not_use(tables: Path) -> None:
    assert statuses(tables, "--to", "4.0") == {
        ("ancient", "new", "client", "blocks", "Fetch 3 needs 4"),
        ("ancient", "new", "server", "blocks", "Produce 2 needs 3"),
        ("rdkafka", "new", "client", "blocks", "Fetch 3 needs 4"),
        ("rdkafka", "new", "server", "blocks", "Fetch 3 needs 4"),
        ("rdkafka", "old", "server", "depends", "Fetch 3 needs 4"),
        ("repaired", "new", "client", "blocks", "Fetch 2 needs 4"),
        ("held down", "old", "client", "blocks", "StreamsGroupHeartbeat 0 is not in 4.0"),
        ("held down", "old", "client", "depends", "Produce 2 needs 3, the library supports 9"),
        ("unknown", "old", "client", "depends", "Produce 1 needs 3"),
        ("of unknown cluster", None, "client", "depends", "Produce 1 needs 3"),
        ("of two", None, "client", "blocks", "Produce 2 needs 3"),
        *(("of two", cluster, "client", FINE, None) for cluster in ("new", "old")),
        (None, "new", "client", "not seen", "API versions were not seen"),
        ("modern", "new", "client", FINE, None),
        ("modern", "new", "server", FINE, None),
        *((name, "old", "client", FINE, None) for name in ("refused", "unanswered", "newer")),
        (None, None, "client", "not seen", "tls"),
        (None, None, "server", "not seen", "tls"),
    }


def test_what_is_encrypted_has_its_workload_and_node(tables: Path) -> None:
    found = answered(upgrade, tables, "--filter", "reason = tls")
    assert {(row["workload"], row["node"]) for row in found} == {("billing-7f", "node-1"), (None, "broker-1")}


def test_forged_sums_are_unknown_and_hide_nobody(tmp_path: Path) -> None:
    forged = [traffic("x", api, 1, requests=2**62 + 1, responses=2**62) for api in (ApiKey.FETCH, ApiKey.PRODUCE)]
    write_rows(tmp_path, "traffic", [*forged, traffic("honest", ApiKey.FETCH, 1)])
    rows = {row["client"]: row["requests"] for row in answered(upgrade, tmp_path, "--to", "4.0")}
    assert rows == {"x": None, "honest": 50}


def test_a_use_has_its_own_times_and_library(tables: Path) -> None:
    (repaired,) = answered(upgrade, tables, "--to", "4.0", "--filter", "client = repaired")
    assert (repaired["library"], repaired["last"][:10]) == ("sarama 1.20", TIME.ago(days=8).isoformat()[:10])
    since = answered(upgrade, tables, "--to", "4.0", "--since", "7d", "--filter", "client = repaired")
    assert [row["status"] for row in since] == [FINE]


def test_those_that_block_are_first_and_what_was_not_used_is_named(tables: Path) -> None:
    rows = answered(upgrade, tables, "--to", "4.0.0")
    assert [row["status"] for row in rows] == sorted(row["status"] for row in rows)
    modern, _ = (row for row in rows if row["client"] == "modern")
    assert (modern["workload"], modern["library"], modern["requests"]) == ("python", "librdkafka 2.3.0", 100)
    unused = modern["not_used"].split(", ")
    assert {"OffsetCommit", "JoinGroup", "CreateTopics"} <= {*unused}
    assert not {"Fetch", "Produce", "Metadata"} & {*unused}


def test_each_release_has_its_own_versions(tables: Path) -> None:
    lacks = ("held down", "old", "client", "blocks", "StreamsGroupHeartbeat 0 is not in 3.9")
    assert {found for found in statuses(tables, "--to", "3.9") if found[3] not in (FINE, "not seen")} == {lacks}
    assert not any("is not in" in (found[4] or "") for found in statuses(tables))  # the newest release
    own = ("kafka-probe-agent", "new", "client", "blocks", "Produce 0 needs 3")
    assert own in statuses(tables, "--to", "4.0", "--internal")


def test_a_release_that_is_not_known_is_refused_with_those_that_are(tables: Path) -> None:
    with pytest.raises(UsageError, match=r"The versions of Kafka '5\.0' are not known\. Use one of 3\.9\.0, 4\.0\.0"):
        asked(upgrade, tables, "--to", "5.0")


def test_the_table_of_releases_has_kafkas_definitions() -> None:
    of_newest = {key: (api.request[0].first, api.request[0].last) for key, api in apis().items()}
    assert release("4.3") == {key: of_newest[key] for key in release("4.3")}
    assert {*of_newest} - {*release("4.3")} >= {ApiKey.VOTE, ApiKey.LEADER_AND_ISR}  # of controllers alone
    assert {name: of_release[ApiKey.JOIN_GROUP] for name, of_release in releases().items()} == {
        **dict.fromkeys(releases(), (0, 9)),
        "4.0.0": (2, 9),  # KAFKA-18659: 4.0.1 supports 0 and 1 again
    }
    assert release("4.0")[ApiKey.PRODUCE] == (3, 12)


def test_documented_commands_find_clients_that_block(tables: Path) -> None:
    for flags in documented_flags("upgrade", "README.md", "docs/guide/answers.md"):
        assert asked(upgrade, tables, *flags).exit_code == 0
