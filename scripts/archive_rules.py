"""Writes archive_compatibility.json: the rules of each version by which frames were copied.

It replaces the entry of the version in development and keeps those of releases.
"""

from __future__ import annotations

import json
from pathlib import Path

import kafka_probe
from kafka_probe.protocol.archive_compatibility import BODIES, TABLE
from kafka_probe.protocol.kernel_allow_list import LIMITS, KeptBack, rules_hash
from kafka_probe.protocol.schemas import apis
from kafka_probe.protocol.wire import STUB_FIELDS

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def build() -> str:
    """Return the text of the table with the rules of this version.

    Raises:
        ValueError: the version is released with other rules, or readers cannot read frames of an earlier one.
    """
    keys = {
        name: sorted(api.key for api in apis().values() if LIMITS.get(api.name, (0, 0))[response])
        for response, name in BODIES.items()
    }
    known = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    kept_back = {
        name: {api: sorted(names) for api, names in strings.items()} for name, strings in KeptBack()._asdict().items()
    }
    layout = {name: list(place) for name, place in STUB_FIELDS.items()}
    version, own = kafka_probe.__version__, {"hash": rules_hash(), **keys, **kept_back, "summary": layout}
    if known.get(version, own) != own and f"\n## [{version}]" in CHANGELOG.read_text():
        raise ValueError(f"Version {version} is released with other rules: raise the version first.")
    entries = {**known, version: own}
    if others := [name for name, entry in entries.items() if entry["summary"] != layout]:
        raise ValueError(
            f"Version {others[0]} has other summaries of record sets: let readers choose the layout first."
        )
    lines = (f'  "{version}": {json.dumps(entry)}' for version, entry in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(build())
