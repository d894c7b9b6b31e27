"""The rules by which each version of kafka-probe copies frames, as far as readers of archived frames need them.

archive_compatibility.json has for each version the hash of its rules, the API keys whose bodies they copy, the strings
that they do not copy, and the layout of the summaries of record sets. A frame that exceeds a limit is cut, so limits
need no table. `make schemas` writes it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kafka_probe.protocol.kernel_allow_list import KeptBack

TABLE = Path(__file__).with_name("archive_compatibility.json")
BODIES = {False: "requests", True: "responses"}


class ArchiveRules(NamedTuple):
    """The rules of one version.

    bodies: (API key, True for responses) of the bodies that are copied.
    """

    bodies: frozenset[tuple[int, bool]]
    kept_back: KeptBack


def rules_with_hash(rules: str) -> ArchiveRules | None:
    """Return the rules that have this hash; None: it is unknown."""
    return _rules_by_hash().get(rules)


def unknown_rules(rules: str) -> str:
    """Return a text about a frame whose rules this release does not know."""
    return f"copied by rules {rules}, which this release does not know; a newer one reads it"


@cache
def _rules_by_hash() -> dict[str, ArchiveRules]:
    return {
        entry["hash"]: ArchiveRules(
            frozenset((key, response) for response, name in BODIES.items() for key in entry[name]),
            KeptBack(
                *({api: frozenset(names) for api, names in entry[name].items()} for name in KeptBack._fields),
            ),
        )
        for entry in json.loads(TABLE.read_text()).values()
    }
