"""Lists what is decoded of each API, and which strings leave the kernel.

    python -m kafka_probe.protocol.coverage [--json build/protocol.json]

It prints the APIs with their versions and the facts kept of their requests and responses, derived from the plans, so
that it matches the decoder. docs/reference/protocol.md contains that, and the strings by kernel_allow_list.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kafka_probe.protocol.facts import Fact, MeasureKind, Status
from kafka_probe.protocol.kernel_allow_list import EMPTIED, HIDDEN, LIMITS
from kafka_probe.protocol.plan import PlanStep, plan_for
from kafka_probe.protocol.roles import Part
from kafka_probe.protocol.schemas import Api, SchemaField, apis

_OF_RECORDS = "records, bytes, magic, codec, offsets, producer id and epoch, transactional"
# The order of roles in the table: parts, then facts of the frame, then measures.
_ORDER = {role: index for index, role in enumerate((*Part, *Fact, *MeasureKind))}


def coverage() -> list[dict[str, Any]]:
    """Return one object per API, in the order of the API keys."""
    return [
        {
            "key": api.key,
            "name": api.name,
            "request_versions": list(api.versions),
            "response_versions": list(api.versions),
            "request_facts": _facts(api, response=False),
            "response_facts": _facts(api, response=True),
            "request_header_only": _header_only(api, response=False),
            "response_header_only": _header_only(api, response=True),
        }
        for api in apis().values()
    ]


def markdown() -> str:
    lines = ["| key | API | versions | kept of requests | kept of responses |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in _rows()]
    return "\n".join(lines) + "\n"


def copied_strings() -> str:
    """Return a table of all strings of bodies that leave the kernel, by their names in Kafka's definition."""
    names: dict[str, set[str]] = {}
    for api in apis().values():
        if api.name in LIMITS:
            for name in _strings(field for era in (*api.request, *api.response) for field in era.fields):
                if name not in HIDDEN.get(api.name, ()) and name not in EMPTIED.get(api.name, ()):
                    names.setdefault(name, set()).add(api.name)
    lines = ["| field | APIs |", "| --- | --- |"]
    lines += [f"| {name} | {', '.join(sorted(names[name]))} |" for name in sorted(names)]
    return "\n".join(lines) + "\n"


def _strings(fields: Iterable[SchemaField]) -> Iterator[str]:
    for field in fields:
        if field.type.removeprefix("[]") == "string":
            yield field.name
        yield from _strings(field.fields)


def _rows() -> Iterator[tuple[str, ...]]:
    for row in coverage():
        versions = row["request_versions"]
        span = f"{versions[0]}-{versions[-1]}" if len(versions) > 1 else str(versions[0])
        kept = [
            "header only" if row[f"{way}_header_only"] else ", ".join(row[f"{way}_facts"])
            for way in ("request", "response")
        ]
        yield str(row["key"]), row["name"], span, *kept


def _facts(api: Api, *, response: bool) -> list[str]:
    """Return the roles of an API's fields over all its versions, as texts of the table."""
    steps = [step for version in api.versions for step in plan_for(response, api.key, version).steps]
    roles = sorted(set(_roles(steps)), key=_ORDER.__getitem__)
    return [f"{role.value} ({_OF_RECORDS})" if role is Part.RECORDS else role.value for role in roles]


def _roles(steps: list[PlanStep]) -> Iterator[Part | Fact | MeasureKind]:
    for step in steps:
        if step.role is not None:
            # The table shows a list of topic names and the name inside a topic as the same fact.
            yield Part.TOPIC_NAME if step.role is Part.TOPIC else step.role
        yield from _roles(list(step.inner))


def _header_only(api: Api, *, response: bool) -> bool:
    return all(plan_for(response, api.key, version).done is Status.HEADER_ONLY for version in api.versions)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kafka_probe.protocol.coverage", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args(arguments)
    for row in _rows():
        print("{:>3} {:29} {:6} request: {}\n{:40} response: {}".format(*row[:4], "", row[4]))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"apis": coverage()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
