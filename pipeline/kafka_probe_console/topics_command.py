"""The command `kafka-probe topics`: how much is written to each topic and read from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.period import Period
from kafka_probe_console.traffic import KNOWN_TOPICS, bounded, topic_traffic
from kafka_probe_console.views import AnswerView

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_USES = ("writes", "written"), ("reads", "read")
_TIMES = ("last", "first")


@click.command(
    epilog="""\b
Examples:
  kafka-probe topics --tables kafka-probe-output --since 1h
  kafka-probe topics --tables kafka-probe-output --filter 'readers = 0' --sort written_bytes
"""
)
@prints_view()
def topics(tables: OpenTables, period: Period) -> AnswerView:
    """Print each topic that was written to or read, by how many clients and how much."""
    sql, values = topic_traffic(tables, period)
    sums = {f"{done}_bytes": f"sum(bytes) FILTER (use = '{use}')" for use, done in _USES}
    # Unknown if those of one client are.
    known = "if(count(*) FILTER ({0}) = count(records) FILTER ({0}), sum(records) FILTER ({0}), NULL)"
    sums |= {f"{done}_records": known.format(f"use = '{use}'") for use, done in _USES}
    sums |= {name: f"sum({name})" for name in ("errors", "refused_records")}
    numbers = ("writers", "readers", *sums, "groups")
    return AnswerView(
        sql=f"""
            SELECT topic, count(DISTINCT (client, workload)) FILTER (use = 'writes' AND bytes > 0) AS writers,
                count(DISTINCT (client, workload)) FILTER (use = 'reads' AND (bytes > 0 OR errors < requests))
                    AS readers,
                count(DISTINCT "group") AS groups,
                {", ".join(f"{bounded(total)} AS {name}" for name, total in sums.items())},
                min(first) AS first, max(last) AS last
            FROM ({sql}) GROUP BY topic
        """,
        values=values,
        columns=columns("topic", *numbers, *_TIMES, numbers=numbers, times=_TIMES),
        sort="written_bytes",
        time="last",
        subject="topic",
        known=KNOWN_TOPICS,
    )
