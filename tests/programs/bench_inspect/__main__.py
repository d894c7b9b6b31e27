"""Runs `make bench-inspect`: what `kafka-probe inspect` takes on an archive of a day.

The archive has FRAMES frames (100,000,000) of 20,000 connections, in files as the pipeline's compaction makes of an
hour; to check that, the pipeline compacts one hour. Writes build/bench-inspect.json: seconds and resident memory of the
command by condition, start of the process included, and both layouts. Exit status 1: the layouts differ. The tables
stay in build/bench-inspect until the next run; 100,000,000 frames take 10 GB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "build" / "bench-inspect.json"
_TO_NOWHERE = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)


def main() -> int:
    """Write the tables, measure, and return the exit status."""
    archive = (sys.executable, "-m", "tests.programs.bench_inspect.archive")
    made = json.loads(subprocess.run(archive, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    begin, end = made["period"]
    asked = ("inspect", "--tables", made["tables"], "--from", begin, "--until", end)
    found = {flag: measure((*asked, f"--{flag}"), values) for flag, values in made["values"].items()}
    result = json.dumps({**made["written"], "found": found}, indent=2)
    RESULT.write_text(result + "\n")
    print(result, f"The same as JSON: {RESULT.relative_to(ROOT)}", sep="\n")
    return int(not alike(*made["written"]["layout"].values()))


def measure(asked: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    """Return seconds and resident memory of a command that ends with one of the values."""
    command = (sys.executable, "-m", "kafka_probe", *asked)
    seconds, rss_mb = [], []
    for value in values:
        began = time.monotonic()
        pid = os.posix_spawn(sys.executable, (*command, value), os.environ, file_actions=[_TO_NOWHERE])
        _, status, usage = os.wait4(pid, 0)
        seconds.append(time.monotonic() - began)
        rss_mb.append(usage.ru_maxrss / 1024)
        assert status == 0, f"{command} {value}: status {status}"
    return {
        "seconds": {"median": round(median(seconds), 2), "max": round(max(seconds), 2)},
        "rss_mb": round(max(rss_mb)),
    }


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two layouts have the same number of files and no overlaps, and about the same sizes."""
    names = ("bytes_per_frame", "rows_per_row_group")
    same_sizes = all(0.75 < one[name] / other[name] < 1.33 for name in names)
    return same_sizes and one["files"] == other["files"] and one["overlaps"] == other["overlaps"] == 0


if __name__ == "__main__":
    sys.exit(main())
