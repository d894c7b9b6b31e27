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
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

TIME = FirstUse()
FINE = "fine as far as seen"


def traffic(client: str | None, api: ApiKey | None, version: int | None, side: str = "client", **of: Any) -> Any:
    """Return a row of traffic of a minute, which ended ten minutes ago."""
    window = {"window_start": TIME.now - timedelta(minutes=11), "window_end": TIME.now - timedelta(minutes=10)}
    name = None if api is None else apis()[api].name
    kind = {"api": name, "api_key": api, "api_version": version, "level": "api", "requests": 10, "cluster_id": "new"}
    comm = {"client": "python", "server": "java"}[side]
    return {**window, **kind, "side": side, "comm": comm, "client_id": client, **of}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of two clusters, of which the old one supports only Fetch 3 and Produce 2."""
    path = tmp_path_factory.mktemp("tables")
    library: dict[str, Any] = {"software_name": "librdkafka", "software_version": "2.3.0"}
    refused: dict[str, Any] = {"cluster_id": "old", "errors": {"35": 10}}
    write_rows(
        path,
        "traffic",
        [
            traffic("modern", ApiKey.FETCH, 13),
            traffic("modern", ApiKey.FETCH, 13, "server"),
            traffic("modern", ApiKey.PRODUCE, 9, **library),
            traffic("ancient", ApiKey.FETCH, 3),
            traffic("ancient", ApiKey.FETCH, 3, "server"),
            traffic("ancient", ApiKey.METADATA, 0),
            traffic("ancient", ApiKey.PRODUCE, 2, "server"),
            traffic("held down", ApiKey.PRODUCE, 2, cluster_id="old", **library),
            traffic("refused", ApiKey.PRODUCE, 9, **refused),
            traffic("unknown", ApiKey.PRODUCE, 1, cluster_id="old"),
            traffic("streams", ApiKey.STREAMS_GROUP_HEARTBEAT, 0),
            traffic("broker", ApiKey.LEADER_AND_ISR, 4),
            traffic("newer", ApiKey.FETCH, 99),
            traffic(None, None, None, opaque="tls"),
            traffic("kafka-probe-agent", ApiKey.PRODUCE, 0),
            traffic("modern", ApiKey.FETCH, 0, level="topic"),
        ],
    )
    return path


def statuses(tables: Path, *flags: str) -> dict[tuple[str | None, str], tuple[str, str | None]]:
    return {(row["client"], row["watched"]): (row["status"], row["needs"]) for row in answered(upgrade, tables, *flags)}


def test_a_client_blocks_where_its_brokers_offer_what_it_does_not_use(tables: Path) -> None:
    assert statuses(tables, "--to", "4.0") == {
        ("ancient", "client"): ("blocks", "Fetch 3 needs 4"),
        ("ancient", "broker"): ("blocks", "Produce 2 needs 3"),
        ("streams", "client"): ("blocks", "StreamsGroupHeartbeat 0 is not in 4.0"),
        ("held down", "client"): ("depends", "Produce 2 needs 3, the library supports 9"),
        ("unknown", "client"): ("depends", "Produce 1 needs 3"),
        ("modern", "client"): (FINE, None),
        ("refused", "client"): (FINE, None),
        ("newer", "client"): (FINE, None),
        (None, "client"): ("not seen", "tls"),
    }


def test_those_that_block_are_first_and_what_was_not_used_is_named(tables: Path) -> None:
    rows = answered(upgrade, tables, "--to", "4.0.0")
    assert [row["status"] for row in rows] == sorted(row["status"] for row in rows)
    (modern,) = (row for row in rows if row["client"] == "modern")
    assert (modern["workload"], modern["library"], modern["requests"]) == ("python", "librdkafka 2.3.0", 20)
    unused = modern["not_used"].split(", ")
    assert {"OffsetCommit", "JoinGroup", "CreateTopics"} <= {*unused}
    assert not {"Fetch", "Produce", "Metadata"} & {*unused}


def test_each_release_has_its_own_versions(tables: Path) -> None:
    assert {status for status, _ in statuses(tables, "--to", "3.9").values()} == {"blocks", FINE, "not seen"}
    assert statuses(tables, "--to", "3.9")["streams", "client"][0] == "blocks"
    assert statuses(tables)["streams", "client"] == (FINE, None)  # the newest release
    assert ("kafka-probe-agent", "client") in statuses(tables, "--internal")


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
