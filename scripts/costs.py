"""Describes measured costs in Markdown: tables and plots of what `make bench` measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

from scripts.markdown import table

_BENCH = Path(__file__).parents[1] / "docs" / "data" / "bench.json"  # results of `make bench`

# For each figure of `make bench`: its description, its units per unit of the table, and its number format.
_AGENT = {
    "throughput_ratio": ("client throughput with the agent, as a share of that without", 1, ".2f"),
    "throughput_ratio_noise": ("the same without the agent: the noise of the machine", 1, ".2f"),
    "p99_ratio": ("the client's 99th percentile of latency with the agent, as a share of that without", 1, ".2f"),
    "p99_ratio_noise": ("the same without the agent", 1, ".2f"),
    "agent_cpu_us_per_request": ("CPU of the agent per Kafka request, watching the broker's end, in µs", 1, ".1f"),
    "agent_both_ends_cpu_us_per_request": ("watching both ends of each connection", 1, ".1f"),
    "agent_all_frames_cpu_us_per_request": ("watching the broker's end with `--archive all`", 1, ".1f"),
    "tcpdump_cpu_us_per_request": ("for comparison: `tcpdump -w`, which decodes nothing", 1, ".1f"),
    "tshark_cpu_us_per_request": ("`tshark`, which decodes Kafka and knows no processes", 1, ".0f"),
    "kernel_ns_per_request_tracepoint": ("kernel time of the hooks per request, in µs", 1000, ".1f"),
    "kernel_ns_per_other_call_tracepoint": ("the same per call on any other TCP socket, in µs", 1000, ".2f"),
    "agent_cpu_us_per_connection": ("CPU of the agent per connection opened, used once and closed, in µs", 1, ".0f"),
    "kernel_ns_per_connection": ("kernel time of the hooks per such connection, in µs", 1000, ".0f"),
    "first_event_s": ("start of the agent to its first event with a cache of compiled programs, in s", 1, ".1f"),
    "first_event_without_cache_s": ("the same with `--cache-dir off`", 1, ".1f"),
    "agent_rss_mb": ("peak resident memory of the agent, with its HTTP server, in MiB", 1, ".1f"),
    "losses": ("losses of all kinds, summed", 1, ".0f"),
}
_SPREAD = ("median", "min", "max")


def of_agent() -> str:
    """Return a table of all rounds, and plots and a table of what grows with open connections and requests."""
    found = json.loads(_BENCH.read_text())
    rounds = (
        (text, *(f"{found[name][part] / per:{form}}" for part in _SPREAD)) for name, (text, per, form) in _AGENT.items()
    )
    scale = found["scale"]
    connections, rates = scale["by_connections"], scale["by_rate"]
    by_connections = (
        (
            f"{line['connections']:,}",
            f"{line['start_s']:.0f}",
            f"{line['agent_bytes'] / 1e6:.0f}",
            f"{line['kernel_bytes'] / 1e6:.0f}",
            f"{line['idle_cpu_percent']:.2f}",
        )
        for line in connections
    )
    head = (
        "open connections",
        "s from start until all are reported, without a cache",
        "agent in MB",
        "its maps in MB",
        "CPU in % when all are silent",
    )
    memory = {f"{line['connections']:,}": (line["agent_bytes"] + line["kernel_bytes"]) / 1e6 for line in connections}
    cpu = {f"{line['requests_per_s']:,.0f}": line["cpu_percent"] for line in rates}
    return "\n".join(
        (
            table(("what", *_SPREAD), rounds),
            f"Measured on {scale['date']}.\n",
            _plot("Memory in MB by open connections", memory),
            _plot("CPU in % of a core by requests per second", cpu),
            table(head, by_connections),
        )
    )


def _plot(title: str, values: dict[str, float]) -> str:
    labels, heights = json.dumps([*values]), json.dumps([round(value, 1) for value in values.values()])
    top = math.ceil(max(values.values()) * 1.1)
    lines = ("xychart-beta", f'  title "{title}"', f"  x-axis {labels}", f"  y-axis 0 --> {top}", f"  bar {heights}")
    return "".join(f"{line}\n" for line in ("```mermaid", *lines, "```"))
