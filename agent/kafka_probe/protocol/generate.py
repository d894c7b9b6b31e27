"""Writes schemas.json from the message definitions inside Kafka's own client jars.

    python -m kafka_probe.protocol.generate [--jars build/jars] [--check]

Kafka 4.3.0 has the last word; 3.9.0 adds the versions that Kafka 4.0 removed (KIP-896), which old clients go on
speaking to 3.x brokers. `schemas.py` documents the table. Runs when we take a newer Kafka, never in the agent.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_probe.errors import KafkaProbeError, StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

NEWEST, OLDER = "4.3.0", "3.9.0"
TABLE = Path(__file__).with_name("schemas.json")
_UNBOUNDED = 0x7FFF
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)

Definition = dict[str, Any]
Range = tuple[int, int]


def parse_range(text: str) -> Range | None:
    """Kafka's version syntax: `none`, `3`, `3+`, `3-7`."""
    if text == "none":
        return None
    low, plus, high = text.partition("+") if "+" in text else text.partition("-")
    if plus == "+":
        return int(low), _UNBOUNDED
    return int(low), int(high or low)


def build(jars: Path) -> str:
    """The text of schemas.json. Raises StartError if a jar is not below `jars`."""
    newest, older = (_definitions(_find(jars, version)) for version in (NEWEST, OLDER))
    lines = []
    for key in sorted({key for key, _ in newest | older}):
        name = (newest.get((key, "request")) or older[key, "request"])["name"].removesuffix("Request")
        directions = []
        for direction in ("request", "response"):
            eras = list(_eras(newest.get((key, direction)), older.get((key, direction))))
            text = ",\n   ".join(json.dumps(era, separators=(",", ":")) for era in eras)
            directions.append(f'  "{direction}":[{text}]')
        lines.append(f'"{key}":{{"name":"{name}",\n' + ",\n".join(directions) + "}")
    source = f"Message definitions of Apache Kafka {NEWEST} and {OLDER} (Apache License 2.0), by generate.py"
    return f'{{"source":"{source}",\n"apis":{{\n' + ",\n".join(lines) + "}}\n"


def _find(jars: Path, version: str) -> Path:
    name = f"kafka-clients-{version}.jar"
    for path in sorted(jars.rglob(name)):
        return path
    raise StartError(f"{name} is not below {jars}: run `make setup-tests`")


def _definitions(jar: Path) -> dict[tuple[int, str], Definition]:
    found = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                definition = json.loads(_COMMENT.sub("", archive.read(name).decode()))
                if "apiKey" in definition:
                    found[definition["apiKey"], definition["type"]] = definition
    return found


def _eras(newest: Definition | None, older: Definition | None) -> Iterator[list[Any]]:
    """The definitions that describe an API, each for the versions it is taken for."""
    taken = parse_range(newest["validVersions"]) if newest else None
    if newest and taken:
        yield _era(newest, taken)
    known = parse_range(older["validVersions"]) if older else None
    if older and known and (taken is None or known[0] < taken[0]):
        yield _era(older, (known[0], min(known[1], taken[0] - 1) if taken else known[1]))


def _era(definition: Definition, versions: Range) -> list[Any]:
    flexible = parse_range(definition["flexibleVersions"])
    structs = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", ())}
    return [*versions, flexible and flexible[0], _fields(definition["fields"], structs, versions)]


def _fields(fields: list[Definition], structs: dict[str, list[Definition]], era: Range) -> list[list[Any]]:
    rows = []
    for field in fields:
        versions = _within(field["versions"], era)
        if versions is None:
            continue
        members = field.get("fields") or structs.get(field["type"].removeprefix("[]"))
        row = [
            field["name"],
            field["type"] if members is None else "[]" * field["type"].startswith("[]") + "struct",
            None if versions == era else versions,
            _within(field.get("nullableVersions", "none"), era),
            None if "tag" not in field else [field["tag"], *(_within(field["taggedVersions"], era) or ())],
            None if members is None else _fields(members, structs, era),
        ]
        while row[-1] is None:
            row.pop()
        rows.append(row)
    return rows


def _within(text: str, era: Range) -> Range | None:
    versions = parse_range(text)
    if versions is None or versions[0] > era[1] or versions[1] < era[0]:
        return None
    return max(versions[0], era[0]), min(versions[1], era[1])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kafka_probe.protocol.generate", description=__doc__)
    parser.add_argument(
        "--jars", type=Path, default=Path("build/jars"), help="folder that holds the kafka-clients jars"
    )
    parser.add_argument("--check", action="store_true", help="only say whether schemas.json is what the jars give")
    options = parser.parse_args(arguments)
    try:
        text = build(options.jars)
    except KafkaProbeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if not options.check:
        TABLE.write_text(text)
    elif TABLE.read_text() != text:
        print(f"{TABLE.name} is not what the jars give: run this without --check", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
