"""Writes what the code knows best: parts of README.md, each between `<!-- generated: NAME -->` and `<!-- end -->`, and
in the schema of the Helm chart's values the names of the settings.

`docs.py` updates them. `docs.py --check` changes nothing, reports the outdated parts and exits with 1 if there are any.
`docs.py FILE` takes another file instead of README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kafka_probe import config, events, flows, load_shedding, server, workloads
from kafka_probe.capture import programs
from kafka_probe.connections import exchange, frames, topics, tracker
from kafka_probe.protocol import coverage
from kafka_probe.server import metrics
from kafka_probe.sinks import outbox
from kafka_probe.workloads import kubernetes
from kafka_probe_pipeline import storms
from kafka_probe_pipeline.config import Config as PipelineConfig
from kafka_probe_pipeline.config import flag_of
from kafka_probe_pipeline.connections import END, SCHEMA, VERDICT
from kafka_probe_pipeline.rules import CAUSES
from kafka_probe_pipeline.traffic import COUNTS, HISTOGRAMS, KEYS

README = Path(__file__).parents[1] / "README.md"
KERNELS = Path(__file__).parents[1] / "docs" / "kernels.json"  # results of `make test-kernels`
BENCH = Path(__file__).parents[1] / "docs" / "bench.json"  # results of `make bench`
CHART = Path(__file__).parents[1] / "agent" / "deploy" / "helm" / "kafka-probe" / "values.schema.json"
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# Settings that the chart sets by its own values, and refuses among `settings`.
SET_BY_THE_CHART = {"conntrack", "kubernetes", "node", "ready_file"}

# For each figure of `make bench`: its description, its units per unit of the table, and its number format.
COSTS = {
    "throughput_ratio": ("client throughput with the agent, as a share of that without", 1, ".2f"),
    "throughput_ratio_noise": ("the same without the agent: the noise of the machine", 1, ".2f"),
    "p99_ratio": ("the client's 99th percentile of latency with the agent, as a share of that without", 1, ".2f"),
    "p99_ratio_noise": ("the same without the agent", 1, ".2f"),
    "agent_cpu_us_per_request": ("CPU of the agent per Kafka request, watching the broker's end, in µs", 1, ".1f"),
    "agent_both_ends_cpu_us_per_request": ("watching both ends of each connection", 1, ".1f"),
    "tcpdump_cpu_us_per_request": ("for comparison: `tcpdump -w`, which decodes nothing", 1, ".1f"),
    "tshark_cpu_us_per_request": ("`tshark`, which decodes Kafka and knows no processes", 1, ".0f"),
    "kernel_ns_per_request_tracepoint": ("kernel time of the hooks per request, in µs", 1000, ".1f"),
    "kernel_ns_per_other_call_tracepoint": ("the same per call on any other TCP socket, in µs", 1000, ".2f"),
    "agent_cpu_us_per_connection": ("CPU of the agent per connection opened, used once and closed, in µs", 1, ".0f"),
    "kernel_ns_per_connection": ("kernel time of the hooks per such connection, in µs", 1000, ".0f"),
    "agent_rss_mb": ("peak resident memory of the agent, with its HTTP server, in MiB", 1, ".1f"),
    "records_lost": ("records lost", 1, ".0f"),
}

WHEN = {
    "flow": "once per interval, per connection, API and version",
    "request": "per exchange, with `--requests`",
    "open": "when a connection is seen first, and again when one that was listed gets its flow id",
    "close": "when an end of a connection is closed, a second later",
    "reset": "when a host answers a segment of a connection that is gone",
    "topics": "once per interval in which topic ids got names; each pair once",
    "agent": "once per interval, after all others",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=README)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something would change")
    arguments = parser.parse_args()
    text = arguments.file.read_text()
    parts = [name for start, name, end in PART.findall(text) if f"{start}\n{PARTS[name]}\n{end}" not in text]
    stale = [f"{arguments.file.name}: the part `{name}`" for name in parts]
    if (schema := chart_schema()) != CHART.read_text():
        stale.append(f"{CHART.name}: the list of settings")
    if arguments.check:
        for what in stale:
            print(f"{what} is out of date; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    CHART.write_text(schema)
    arguments.file.write_text(PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]}\n{part[3]}", text))
    return 0


def event_tables() -> str:
    sections = [
        ("all events", "", events.COMMON),
        *((kind, WHEN[kind], fields) for kind, fields in events.KINDS.items()),
    ]
    return "\n".join(
        f"### {title}{f': {when}' if when else ''}\n\n" + table(("field", "type", "meaning"), rows(fields))
        for title, when, fields in sections
    )


def rows(fields: Iterable[events.Field], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield a row per field; fields inside objects and lists follow with their paths."""
    for field in fields:
        name = f"{prefix}{field.name}"
        match field.type:
            case events.Struct(inner):
                yield f"`{name}`", "object", field.doc
                yield from rows(inner, f"{name}.")
            case events.ListOf(element):
                yield f"`{name}`", "list of objects", field.doc
                yield from rows(element.fields, f"{name}[].")
            case events.Counts():
                yield f"`{name}`", "object of counts", field.doc
            case events.Strings():
                yield f"`{name}`", "object of strings", field.doc
            case scalar:
                yield f"`{name}`", "integer" if scalar == "long" else scalar, field.doc


def loss_table() -> str:
    modules = (programs, workloads, kubernetes, frames, tracker, flows, load_shedding, topics, exchange, server, outbox)
    losses = {reason: text for module in modules for reason, text in module.LOSSES.items()}
    return table(("reason", "what was lost, and what to do"), ((f"`{name}`", text) for name, text in losses.items()))


def metric_table() -> str:
    return table(
        ("metric", "type", "labels", "meaning"),
        (
            (f"`{metrics.PREFIX}{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.doc)
            for m in metrics.METRICS
        ),
    )


def cause_table() -> str:
    return table(("cause", "what was seen"), ((f"`{cause}`", text) for cause, text in CAUSES.items()))


def pipeline_table() -> str:
    fields = PipelineConfig.model_fields.items()
    defaults = ("" if field.default in (None, "", {}) else f"`{str(field.default).lower()}`" for _, field in fields)
    named = ((f"`{flag_of(name)}`", field.description or "") for name, field in fields)
    return table(
        ("flag", "default", "meaning"),
        ((flag, default, text) for (flag, text), default in zip(named, defaults, strict=True)),
    )


def column_table() -> str:
    tables = {
        "traffic": (*KEYS, *COUNTS, *HISTOGRAMS),
        "connections": SCHEMA.names,
        "connections.client, .server": END.names,
        "connections.verdict": VERDICT.names,
        "verdicts": (*(name for name in VERDICT.names if name != "batch_id"), *SCHEMA.names[:-1]),
        "storms": storms.SCHEMA.names,
    }
    return table(
        ("table, or column of it", "columns"),
        ((f"`{name}`", ", ".join(f"`{column}`" for column in columns)) for name, columns in tables.items()),
    )


def kernel_table() -> str:
    found = json.loads(KERNELS.read_text())
    head = ("Debian's kernel", "fentry", "kprobe", "tracepoint", "instructions verified, at most")
    rows = table(head, map(kernel_row, found["kernels"]))
    return f"Tried on {' and '.join(sorted({kernel['date'] for kernel in found['kernels']}))}.\n\n{rows}"


def kernel_row(kernel: dict[str, Any]) -> tuple[str, ...]:
    """Return a kernel's row: results of each backend by buffer, and the most instructions verified of a program."""
    cells = []
    for backend in ("fentry", "kprobe", "tracepoint"):
        runs = [run for run in kernel["runs"] if run["backend"] == backend]
        reasons = {f"{run['result']}: {run['reason']}" for run in runs if run["result"] == "absent"}
        cells.append(", ".join(reasons or (f"{run['buffer']} {run['result']}" for run in runs)))
    most = max((count for run in kernel["runs"] for count in run["instructions"].values()), default=0)
    return f"{kernel['release']} ({kernel['package_version']})", *cells, f"{most:,}"


def cost_plots() -> str:
    """Return plots of memory by open connections and of CPU by requests per second, and a table."""
    found = json.loads(BENCH.read_text())["scale"]
    connections, rates = found["by_connections"], found["by_rate"]
    rows = (
        (
            f"{line['connections']:,}",
            f"{line['start_s']:.0f}",
            f"{line['agent_bytes'] / 1e6:.0f}",
            f"{line['kernel_bytes'] / 1e6:.0f}",
            f"{line['idle_cpu_percent']:.2f}",
        )
        for line in connections
    )
    head = ("open connections", "start in s", "agent in MB", "its maps in MB", "CPU in % when all are silent")
    memory = {f"{line['connections']:,}": (line["agent_bytes"] + line["kernel_bytes"]) / 1e6 for line in connections}
    cpu = {f"{line['requests_per_s']:,.0f}": line["cpu_percent"] for line in rates}
    charts = plot("Memory in MB by open connections", memory) + plot("CPU in % of a core by requests per second", cpu)
    return f"Measured on {found['date']}.\n\n{charts}{table(head, rows)}"


def cost_table() -> str:
    """Return a table of the median, minimum and maximum of all rounds."""
    found = json.loads(BENCH.read_text())
    return table(
        ("what", "median", "min", "max"),
        (
            (text, *(f"{found[name][part] / per:{form}}" for part in ("median", "min", "max")))
            for name, (text, per, form) in COSTS.items()
        ),
    )


def plot(title: str, values: dict[str, float]) -> str:
    places, heights = json.dumps([*values]), json.dumps([round(value, 1) for value in values.values()])
    lines = ("xychart-beta", f'  title "{title}"', f"  x-axis {places}", f"  y-axis {top(values)}", f"  bar {heights}")
    return "".join(f"{line}\n" for line in ("```mermaid", *lines, "```", ""))


def top(values: dict[str, float]) -> str:
    """Return the range of an axis from 0 to above the highest value."""
    return f"0 --> {math.ceil(max(values.values()) * 1.1)}"


def chart_schema() -> str:
    """Return the schema of the chart's values with the names of the settings that the chart accepts: no secrets."""
    schema = json.loads(CHART.read_text())
    known = (name for name, field in config.Config.model_fields.items() if not config.is_secret(field))
    names = [name for name in known if name not in SET_BY_THE_CHART and not name.startswith(("listen", "spool_"))]
    schema["properties"]["settings"]["propertyNames"]["enum"] = names
    return json.dumps(schema, indent=2) + "\n"


def table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


PARTS = {
    "events": event_tables(),
    "configuration": config.markdown(),
    "losses": loss_table(),
    "metrics": metric_table(),
    "causes": cause_table(),
    "pipeline": pipeline_table(),
    "protocol": coverage.markdown(),
    "kernels": kernel_table(),
    "costs": cost_table(),
    "cost": cost_plots(),
    "tables": column_table(),
}

if __name__ == "__main__":
    sys.exit(main())
