"""Runs `make verdicts`: causes every kind of disconnect, and compares the verdicts with the truth.

Two agents watch, one for each simulated node. The pipeline then judges three times: by what both saw, and by what each
saw alone. Exit status 0: the first matrix is diagonal, and the others have no wrong verdict, only unknown ones.

    python -m tests.programs.verdicts [--count N] [--only REGEX] [--workers N]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kafka_probe.check import require_capture
from tests.lab.fleet import ROOT
from tests.lab.network import Namespace
from tests.lab.processes import LabError, wait_until
from tests.lab.product import Agent, reported_until_us
from tests.programs.verdicts.answers import answers
from tests.programs.verdicts.causes import CAUSES, Cell, Ended
from tests.programs.verdicts.lab import PORTS, Lab, lab
from tests.programs.verdicts.matrix import Judged, Truth, flows, judged, matrix, table

DIRECTORY = ROOT / "build" / "verdicts"
RESULT = ROOT / "build" / "verdicts.json"
# A verdict that rests on what an agent did not see waits for its report on the time after; this is longer.
_LATER_US = 20_000_000

BOTH = "both"


def main() -> int:
    """Run the matrix; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.verdicts")
    parser.add_argument("--count", type=int, default=20, help="connections per cell")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="cells whose name matches")
    parser.add_argument("--workers", type=int, default=6, help="cells at a time")
    arguments = parser.parse_args()
    require_capture()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    cells = [cell for cause in CAUSES for cell in cause.cells() if arguments.only.search(str(cell))]
    views = verdicts(cells, arguments.count, arguments.workers)
    for name, view in views.items():
        print(f"\nWatched: {name}\n{table(matrix(view))}")
    for sentence in (sentences := shortcomings(cells, views)):
        print(sentence, file=sys.stderr)
    one_end = {name: matrix(view) for name, view in views.items() if name != BOTH}
    result = {"matrix": matrix(views[BOTH]), "one_end": one_end}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if sentences else 0


def verdicts(cells: Sequence[Cell], count: int, workers: int) -> dict[str, list[Judged]]:
    """Inject the cells and judge the results, by the watched ends: both, or those of one node."""
    with lab(DIRECTORY / "lab") as made, watching(made) as outputs:
        truth = inject(made, cells, count, workers)
        end_us = time.time_ns() // 1000 + _LATER_US
        wait_until(lambda: all(reported_until_us(events(one)) > end_us for one in outputs), "the last word", every_s=1)
    kept = {str(cell): {**asdict(ended), "connections": sorted(ended.connections)} for cell, ended in truth.items()}
    (DIRECTORY / "truth.json").write_text(json.dumps(kept, indent=2) + "\n")
    say("Judging ...")
    clients, brokers = outputs
    given = answers({BOTH: outputs, "clients": [clients], "brokers": [brokers]}, DIRECTORY)
    flow_ids = flows(truth, given[BOTH])
    return {name: judged(truth, flow_ids, view) for name, view in given.items()}


@contextmanager
def watching(made: Lab) -> Iterator[list[Path]]:
    """Run an agent for the clients' node and one for the brokers'; yield the files that they write."""
    with (
        Agent(_new(DIRECTORY / "clients-agent"), *_flags("clients", made.clients)) as clients,
        Agent(_new(DIRECTORY / "brokers-agent"), *_flags("brokers", made.network.broker)) as brokers,
    ):
        yield [clients.output, brokers.output]


def inject(made: Lab, cells: Sequence[Cell], count: int, workers: int) -> Truth:
    """Inject all cells, some at a time; return the connections that each closed, without failed cells."""

    def one(cell: Cell) -> Ended | None:
        started = time.monotonic()
        try:
            ended = cell.inject(made, count)
        except LabError as error:
            say(f"{cell}: {error}")
            return None
        say(f"{cell}: {len(ended.connections)} connections in {time.monotonic() - started:.0f} s")
        return ended

    with ThreadPoolExecutor(workers) as pool:
        return {cell: ended for cell, ended in zip(cells, pool.map(one, cells), strict=True) if ended}


def events(output: Path) -> list[dict[str, Any]]:
    """Return an agent's own events."""
    return [json.loads(line) for line in output.read_bytes().splitlines() if b'"complete_until"' in line]


def shortcomings(cells: Sequence[Cell], views: dict[str, list[Judged]]) -> list[str]:
    """Return a sentence for each failed cell, and for each cell with a wrong verdict."""
    happened = {one.cell for one in views[BOTH]}
    failed = [f"{cell}: it did not happen" for cell in cells if cell not in happened]
    failed += [f"watched: {name}: no cause was named" for name, view in views.items() if not any(o.right for o in view)]
    examples: dict[str, list[Judged]] = {}
    for name, view in views.items():
        for one in view:
            if one.wrong or (name == BOTH and not one.right):
                examples.setdefault(f"{one.cell}, watched: {name}, {one.given}", []).append(one)
    return [
        *failed,
        *(
            f"{what}: {len(of)}, as {of[0].connection.local} to {of[0].connection.peer}: {of[0].evidence}"
            for what, of in examples.items()
        ),
    ]


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _flags(node: str, namespace: Namespace) -> tuple[str, ...]:
    ports = ",".join(map(str, PORTS))
    return ("--sink", "stdout", "--node", node, "--netns", namespace.path, "--ports", ports)


def _new(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


if __name__ == "__main__":
    sys.exit(main())
