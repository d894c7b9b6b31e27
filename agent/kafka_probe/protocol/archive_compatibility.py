"""The rules by which each version of kafka-probe copies frames, as far as readers of archived frames need them.

    python -m kafka_probe.protocol.archive_compatibility

archive_compatibility.json has for each version the hash of its rules and the API keys whose bodies they let out. What
else may differ needs no table: a hidden string is empty, and a frame that exceeds a limit is cut. `make schemas` runs
this module; it replaces the entry of the version in development and keeps those of releases.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import kafka_probe
from kafka_probe.protocol.kernel_allow_list import LIMITS, rules_hash
from kafka_probe.protocol.schemas import apis

TABLE = Path(__file__).with_name("archive_compatibility.json")
_CHANGELOG = Path(__file__).parents[3] / "CHANGELOG.md"
_NAMES = {False: "requests", True: "responses"}


def copied_bodies(rules: str) -> frozenset[tuple[int, bool]] | None:
    """Return (API key, True for responses) of all bodies that rules of this hash let out; None: it is unknown."""
    return _bodies_by_hash().get(rules)


def unknown_rules(rules: str) -> str:
    """Return a text about a frame whose rules this release does not know."""
    return f"copied by rules {rules}, which this release does not know; a newer one reads it"


@cache
def _bodies_by_hash() -> dict[str, frozenset[tuple[int, bool]]]:
    return {
        entry["hash"]: frozenset((key, response) for response, name in _NAMES.items() for key in entry[name])
        for entry in json.loads(TABLE.read_text()).values()
    }


def build() -> str:
    """Return the text of the table with the rules of this version.

    Raises:
        ValueError: the version is released with other rules.
    """
    keys = {
        name: sorted(api.key for api in apis().values() if LIMITS.get(api.name, (0, 0))[response])
        for response, name in _NAMES.items()
    }
    known = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    version, own = kafka_probe.__version__, {"hash": rules_hash(), **keys}
    if known.get(version, own) != own and f"\n## [{version}]" in _CHANGELOG.read_text():
        raise ValueError(f"Version {version} is released with other rules: raise the version first.")
    entries = {**known, version: own}
    lines = (f'  "{version}": {json.dumps(entry)}' for version, entry in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(build())
