"""Runs `make test-kernels`: the golden conversations on all kernels of the matrix, a table, and build/kernels.json.

KERNELS and BACKENDS name some of them instead, separated by spaces; build/kernels.json keeps what it has of the others.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kernel.archive import SUITES
from tests.kernel.matrix import BACKENDS, BUFFERS, Tried, matrix
from tests.lab.processes import LabError

RESULT = Path(__file__).parents[2] / "build" / "kernels.json"


def main() -> int:
    """Run the matrix; return the exit status."""
    series, backends = (os.environ.get(name, "").split() for name in ("KERNELS", "BACKENDS"))
    tried = []
    try:
        for found in matrix(series or SUITES, backends=backends or BACKENDS):
            keep(found)  # at once: all kernels take hours on a slow machine
            tried.append(found)
    except LabError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    show(tried)
    return int(not all(found.passed for found in tried))


def keep(found: Tried) -> None:
    """Write the results of a kernel with the date. What was not tried again is kept."""
    before = json.loads(RESULT.read_text())["kernels"] if RESULT.exists() else []
    known = {found["series"]: found for found in before}
    new = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **asdict(found)}
    known[found.series] = _with_runs_of(known.get(found.series), new)
    kernels = [known[series] for series in SUITES if series in known]
    RESULT.write_text(json.dumps({"kernels": kernels}, indent=2) + "\n")


def _with_runs_of(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return new results of a kernel with the old ones, on the same package, of other backends.

    What these saw is not compared with what the new runs saw.
    """
    if not old or old["package_version"] != new["package_version"]:
        return new
    backends = {run["backend"] for run in new["runs"]}
    kept = [run for run in old["runs"] if run["backend"] not in backends]
    runs = sorted([*new["runs"], *kept], key=lambda run: BACKENDS.index(run["backend"]))
    others = [text for text in old["differences"] if not any(f"{backend}-" in text for backend in backends)]
    return {**new, "runs": runs, "differences": [*new["differences"], *others]}


def show(tried: Sequence[Tried]) -> None:
    """Print a line per kernel and backend, and all failures."""
    print(
        f"{'kernel':<26} {'backend':<11} {'ring':<8} {'perf':<8} {'tests':>5} {'seconds':>8} {'verified instructions'}"
    )
    for found in tried:
        for backend in dict.fromkeys(run.backend for run in found.runs):
            runs = [run for run in found.runs if run.backend == backend]
            results = {run.buffer: run.result for run in runs}
            seconds = "+".join(f"{run.seconds:.0f}" for run in runs)
            cells = " ".join(f"{results[buffer]:<8}" for buffer in BUFFERS)
            most = max((count for run in runs for count in run.instructions.values()), default=0)
            print(f"{found.release:<26} {backend:<11} {cells} {runs[0].tests:>5} {seconds:>8} {most:>21,}")
    for found in tried:
        for run in found.runs:
            if run.reason:
                print(f"\n{found.release}, {run.backend}, {run.buffer}: {run.result}: {run.reason}")
        for difference in found.differences:
            print(f"\n{found.release}: {difference}")


if __name__ == "__main__":
    sys.exit(main())
