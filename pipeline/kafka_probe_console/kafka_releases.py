"""The versions of each API that releases of Kafka support, from a table that `make schemas` generates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kafka_probe.errors import UsageError

TABLE = Path(__file__).with_name("kafka_releases.json")
Ranges = Mapping[int, tuple[int, int]]


@cache
def releases() -> Mapping[str, Ranges]:
    """Return the lowest and the highest version by API key, for each release; the oldest release first."""
    table = json.loads(TABLE.read_text())
    return {name: {int(key): (low, high) for key, (low, high) in apis.items()} for name, apis in table.items()}


def release(name: str) -> Ranges:
    """Return the versions of a release. name: such as `4.0.1`; `4.0` is 4.0.0.

    Raises:
        UsageError: its definitions are not in the table.
    """
    known = releases()
    found = known.get(name) or known.get(f"{name}.0")
    if found is None:
        raise UsageError(f"The versions of Kafka {name!r} are not known. Use one of {', '.join(known)}.")
    return found
