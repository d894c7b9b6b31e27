"""Runs the commands that answer from the tables, with times relative to the first test of a module."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

ROOT = Path(__file__).parents[2]


class FirstUse:
    """The time of its first use: that of the import may be half an hour before a test."""

    @cached_property
    def now(self) -> datetime:
        return datetime.now(UTC)

    def ago(self, **age: float) -> datetime:
        return self.now - timedelta(**age)


def asked(command: click.Command, tables: Path, *flags: str) -> Result:
    """Run a command on tables; raise what it raises."""
    result = CliRunner().invoke(command, ["--tables", str(tables), *flags])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answered(command: click.Command, tables: Path, *flags: str) -> list[dict[str, Any]]:
    """Return the rows that a command prints with --json."""
    return [json.loads(line) for line in asked(command, tables, "--json", *flags).stdout.splitlines()]


def documented_flags(name: str, *documents: str) -> list[list[str]]:
    """Return the flags of each command of this name in documents, behind --tables."""
    written = "\n".join((ROOT / document).read_text() for document in documents)
    found = re.findall(rf"\.venv/bin/kafka-probe {name} --tables kafka-probe-output([^`\n]*)", written)
    assert found, f"no document has kafka-probe {name}"
    return [shlex.split(flags) for flags in found]
