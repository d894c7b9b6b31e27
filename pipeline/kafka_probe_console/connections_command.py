"""The command `kafka-probe connections`: who opens how many connections, and how long they last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe.errors import UsageError
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.connection_counts import GROUPS, connection_counts
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables


@click.command(
    epilog="""\b
Examples:
  kafka-probe connections --tables kafka-probe-output --since 1h --sort open
  kafka-probe connections --tables kafka-probe-output --by client,node --filter 'opened_per_min > 10'
"""
)
@click.option(
    "--by",
    default="client",
    show_default=True,
    metavar="NAMES",
    help=f"one or more of {', '.join(GROUPS)}",
)
@internal_flag
@prints_view()
def connections(tables: OpenTables, period: Period, by: str, *, internal: bool) -> AnswerView:
    """Print how many connections opened and ended in a period, and how many are open at its end, by client.

    Those that agents found open when they started are not among the opened, and their lifetime is not known.
    """
    groups = [*dict.fromkeys(name.strip() for name in by.split(","))]
    if unknown := [name for name in groups if name not in GROUPS]:
        raise UsageError(f"--by takes {', '.join(GROUPS)}, and not {unknown[0]!r}.")
    return connection_counts(tables, period, groups, sort="opened", internal=internal)
