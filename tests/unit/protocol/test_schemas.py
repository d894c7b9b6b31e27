"""The checked-in table equals Kafka's jars and another generated codec."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kio.index import UnknownEntity, load_payload_module
from kio.static.constants import EntityType

from kafka_probe.protocol import generate
from kafka_probe.protocol.generate import parse_range
from kafka_probe.protocol.schemas import Api, SchemaField, apis, fields_of

JARS = Path(__file__).parents[3] / "build" / "jars"
APIS = list(apis().values())
REMOVED_IN_KAFKA_4 = {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown"}
IN_KAFKA_4 = [api for api in APIS if api.name not in REMOVED_IN_KAFKA_4]


def by_name(api: Api) -> str:
    return api.name


def test_the_table_is_what_the_jars_give() -> None:
    assert generate.main(["--check", "--jars", str(JARS)]) == 0


def test_a_table_that_differs_from_the_jars_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "TABLE", tmp_path / "schemas.json")
    monkeypatch.setattr(generate, "API_KEYS", tmp_path / "api_keys.py")
    generate.TABLE.write_text("{}")
    assert generate.main(["--check", "--jars", str(JARS)]) == 1
    assert generate.main(["--jars", str(JARS)]) == 0
    assert generate.main(["--check", "--jars", str(JARS)]) == 0


def test_without_jars_the_generator_says_where_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--jars", str(tmp_path)]) == 3
    assert "make setup-tests" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "versions"), [("none", None), ("3", (3, 3)), ("3+", (3, 0x7FFF)), ("0-12", (0, 12))])
def test_version_ranges_are_read_as_kafka_writes_them(text: str, versions: tuple[int, int] | None) -> None:
    assert parse_range(text) == versions


@pytest.mark.parametrize("api", APIS, ids=by_name)
def test_the_eras_of_an_api_cover_its_versions_once(api: Api) -> None:
    assert [(era.first, era.last) for era in api.request] == [(era.first, era.last) for era in api.response]
    assert all(newer.first == older.last + 1 for newer, older in pairwise(api.request))
    assert len({era.flexible_from for era in api.request + api.response}) == 1


@pytest.mark.parametrize(
    ("key", "name", "versions"),
    [
        (0, "Produce", range(14)),
        (1, "Fetch", range(19)),
        (3, "Metadata", range(14)),
        (7, "ControlledShutdown", range(4)),
        (74, "ListConfigResources", range(2)),
        (78, "ShareFetch", range(3)),
    ],
)
def test_old_and_new_versions_are_there(key: int, name: str, versions: range) -> None:
    assert (apis()[key].name, apis()[key].versions) == (name, versions)


@pytest.mark.parametrize("api", IN_KAFKA_4, ids=by_name)
@pytest.mark.parametrize("direction", [EntityType.request, EntityType.response])
def test_fields_and_headers_are_those_of_another_codec(api: Api, direction: Any) -> None:
    response = direction is EntityType.response
    compared = 0
    for version in api.versions:
        try:
            module = load_payload_module(api.key, version, direction)
        except UnknownEntity:
            continue  # of Kafka 3
        message = getattr(module, api.name + ("Response" if response else "Request"))
        header_flexible = message.__header_schema__.__flexible__
        assert header_flexible == (api.flexible_response_header(version) if response else api.flexible(version))
        assert message.__flexible__ == api.flexible(version)
        fields = fields_of(api, response=response, version=version)
        assert_same_fields(fields, message, version)
        compared += 1
    assert compared


def assert_same_fields(fields: tuple[SchemaField, ...], message: Any, version: int) -> None:
    ours = [field.name for field in fields if field.versions[0] <= version <= field.versions[1]]
    theirs = [field.name for field in dataclasses.fields(message)]
    for our_name, their_name in zip(ours, theirs, strict=True):
        assert our_name.lower().startswith(their_name.replace("_", ""))  # their names leave units away
