"""The command `kafka-probe map`: who talks to whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kafka_probe.text import NAME_LIMIT, printable
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.connection_counts import connection_counts
from kafka_probe_console.period import Period
from kafka_probe_console.views import Answer, AnswerView

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_GROUPS = ("workload", "client", "broker", "node")


@click.command(
    "map",
    epilog="""\b
Examples:
  kafka-probe map --tables kafka-probe-output --filter "client ~ 'billing-*'"
  kafka-probe map --tables kafka-probe-output --since 1h --limit 1000 --dot >map.dot
""",
)
@click.option("--dot", is_flag=True, help="print a graph in the DOT language, which Graphviz draws")
@internal_flag
@prints_view()
def connection_map(tables: OpenTables, period: Period, *, dot: bool, internal: bool) -> AnswerView:
    """Print which workloads and clients have connections to which brokers."""
    view = connection_counts(tables, period, _GROUPS, sort="open", internal=internal)
    return replace(view, graph=_graph) if dot else view


def _graph(found: Answer) -> Iterator[str]:
    """Yield the lines of a graph in DOT: boxes are brokers, and an edge has the number of open connections."""
    place = {column.name: number for number, column in enumerate(found.columns)}
    sources, brokers = dict[object, str](), dict[object, str]()
    yield "digraph kafka {"
    yield "  rankdir=LR"
    for row in found.rows:
        workload, client, broker, node, number = (row[place[name]] for name in (*_GROUPS, "open"))
        source = (workload, client, node)
        if source not in sources:
            sources[source] = f"client{len(sources)}"
            yield f'  {sources[source]} [label="{_label(source)}"]'
        if broker not in brokers:
            brokers[broker] = f"broker{len(brokers)}"
            yield f'  {brokers[broker]} [label="{_label([broker])}", shape=box]'
        yield f'  {sources[source]} -> {brokers[broker]} [label="{number}"]'
    yield "}"


def _label(names: Iterable[object]) -> str:
    """Return names, a line each, for a text in quotes in DOT, which reads escapes and HTML's entities."""
    texts = (printable(name, NAME_LIMIT) for name in names if name)
    escaped = (text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "\\n".join(escaped) or "unknown"
