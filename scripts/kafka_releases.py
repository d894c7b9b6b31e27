"""Writes kafka_releases.json: the versions of each API that releases of Kafka support.

The versions are `validVersions` in the definitions of requests to brokers, which the jars of Kafka's clients contain.
Brokers may advertise others: 4.0.0 advertises Produce 0, and refuses it.
"""

from __future__ import annotations

import json
from pathlib import Path

from kafka_probe.protocol.generate import definitions, parse_range
from kafka_probe_console.kafka_releases import TABLE

JARS = Path(__file__).parents[1] / "build" / "jars" / "releases"


def ranges(jar: Path) -> dict[str, tuple[int, int]]:
    """Return the lowest and the highest version by API key; of APIs of controllers alone nothing."""
    found = {}
    for (key, direction), definition in sorted(definitions(jar).items()):
        versions = parse_range(definition["validVersions"])
        if direction == "request" and versions and "broker" in definition.get("listeners", ()):
            found[str(key)] = versions
    return found


def build() -> str:
    """Return the text of the table: an object of API keys per release."""
    jars = {tuple(map(int, jar.stem.rpartition("-")[2].split("."))): jar for jar in JARS.glob("kafka-clients-*.jar")}
    lines = (
        f'"{".".join(map(str, release))}":{json.dumps(ranges(jar), separators=(",", ":"))}'
        for release, jar in sorted(jars.items())
    )
    return "{" + ",\n".join(lines) + "}\n"


if __name__ == "__main__":
    TABLE.write_text(build())
