"""The rules by which each version of kafka-probe copies frames, as far as readers of archived frames need them.

archive_compatibility.json has for each version the hash of its rules and the API keys whose bodies they let out. What
else may differ needs no table: a hidden string is empty, and a frame that exceeds a limit is cut. `make schemas` writes
it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("archive_compatibility.json")
BODIES = {False: "requests", True: "responses"}


def copied_bodies(rules: str) -> frozenset[tuple[int, bool]] | None:
    """Return (API key, True for responses) of all bodies that rules of this hash let out; None: it is unknown."""
    return _bodies_by_hash().get(rules)


def unknown_rules(rules: str) -> str:
    """Return a text about a frame whose rules this release does not know."""
    return f"copied by rules {rules}, which this release does not know; a newer one reads it"


@cache
def _bodies_by_hash() -> dict[str, frozenset[tuple[int, bool]]]:
    return {
        entry["hash"]: frozenset((key, response) for response, name in BODIES.items() for key in entry[name])
        for entry in json.loads(TABLE.read_text()).values()
    }
