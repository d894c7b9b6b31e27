"""The command `kafka-probe topic`: who writes to a topic, and who reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.period import Period
from kafka_probe_console.traffic import KNOWN_TOPICS, SUMS, topic_traffic
from kafka_probe_console.views import AnswerView

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables


@click.command(
    epilog="""\b
Examples:
  kafka-probe topic --tables kafka-probe-output orders --since 1h
  kafka-probe topic --tables kafka-probe-output 'payments.*' --filter 'use = reads'
"""
)
@click.argument("name")
@prints_view()
def topic(tables: OpenTables, period: Period, name: str) -> AnswerView:
    """Print who writes to the topic NAME and who reads it, over all nodes.

    NAME is a topic, with * and ? as in shells, or the id of a topic whose name is not known.
    """
    sql, values = topic_traffic(tables, period)
    return AnswerView(
        sql=f"SELECT * FROM ({sql}) WHERE topic GLOB ?",
        values=(*values, name),
        columns=columns(
            *("use", "client", "workload", "group", "requests", "records", "bytes", "errors", "refused_records"),
            *("topic", "node", "side", "last", "first"),
            numbers=SUMS,
            times={"last", "first"},
        ),
        sort="bytes",
        time="last",
        subject="use of a topic",
        known=KNOWN_TOPICS,
    )
