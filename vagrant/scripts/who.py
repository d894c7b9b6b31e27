"""Prints the clients behind a NAT from kafka-probe's events on standard input: a line per accepted connection.

The two ends of a connection have different addresses and the same flow_id. Only Python's own library is needed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

HEADINGS = ("THE BROKER SEES", "IT IS", "FLOW ID", "NODE", "PID", "COMM", "CGROUP", "CLIENT ID", "LIBRARY")


def main() -> None:
    """Read all events, then print the table."""
    ends: dict[tuple[str, str], dict[str, Any]] = {}
    for line in filter(str.strip, sys.stdin):  # kcat sets records apart by empty lines
        event = json.loads(line)
        if event.get("flow_id"):
            known = {name: value for name, value in event.items() if value is not None}
            ends.setdefault((event["flow_id"], event["side"]), {}).update(known)
    # Leave out the connections of the agents.
    accepted = [(flow, end) for (flow, side), end in ends.items() if side == "server" and not end.get("internal")]
    rows = [HEADINGS, *(row(end, ends.get((flow, "client"), {})) for flow, end in accepted)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def row(server_side: dict[str, Any], client_side: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of a connection; it has a dash where no agent watched the client end."""
    workload, client = client_side.get("workload", {}), client_side.get("client", {})
    library = [client[name] for name in ("software_name", "software_version") if client.get(name)]
    cells = (
        server_side["peer"],
        client_side.get("local"),
        server_side["flow_id"],
        client_side.get("node"),
        workload.get("pid"),
        workload.get("comm"),
        workload.get("cgroup"),
        client.get("id"),
        " ".join(library),
    )
    return tuple(_printable(str(cell or "-")) for cell in cells)


def _printable(text: str) -> str:
    """Return the beginning of a text with what a terminal obeys as escapes: others choose their names."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:64])


if __name__ == "__main__":
    main()
