"""Runs `make test-kernels`: the golden conversations on all kernels of the matrix, a table, and build/kernels.json.

KERNELS names some of them instead, separated by spaces; then build/kernels.json keeps what it has of the others.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.kernel.archive import SUITES
from tests.kernel.matrix import BACKENDS, BUFFERS, Tried, matrix
from tests.lab.processes import LabError

RESULT = Path(__file__).parents[2] / "build" / "kernels.json"


def main() -> int:
    """Run the matrix; return the exit status."""
    chosen = os.environ.get("KERNELS", "").split()
    try:
        tried = matrix(chosen or SUITES, long=True)
    except LabError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    keep(tried)
    show(tried)
    return int(not all(found.passed for found in tried))


def keep(tried: Iterable[Tried]) -> None:
    """Write the results, each kernel with its date."""
    before = json.loads(RESULT.read_text())["kernels"] if RESULT.exists() else []
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    known = {found["series"]: found for found in (*before, *({"date": date, **asdict(found)} for found in tried))}
    kernels = [known[series] for series in SUITES if series in known]
    RESULT.write_text(json.dumps({"kernels": kernels}, indent=2) + "\n")


def show(tried: Iterable[Tried]) -> None:
    """Print a line per kernel and backend, and all failures."""
    tried = list(tried)
    print(
        f"{'kernel':<26} {'backend':<11} {'ring':<8} {'perf':<8} {'tests':>5} {'seconds':>8} {'verified instructions'}"
    )
    for found in tried:
        for backend in BACKENDS:
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
