"""Runs `make attack`: one flood after the other at an agent, beside three honest clients; ten minutes.

Writes build/attack.json. Exit status 0: memory stays below the limit, at least 99 % of the honest clients' requests are
reported and the rest is counted, nothing of records leaves the kernel, and neither agent nor pipeline ends. With
BASELINE=REVISION the same floods hit the agent of that revision, too, whose figures are printed beside. FLOODS names
some of the floods, SECONDS is how long most of them take.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.clients import ROOT
from tests.lab.processes import LabError
from tests.lab.product import EVENTS
from tests.lab.walker import walk
from tests.programs.attack import forged, hostile_spool
from tests.programs.attack.judge import faults, faults_of_logs, figures, read_reported
from tests.programs.attack.lab import Lab

RESULT = ROOT / "build" / "attack.json"
LIMIT_BYTES = 512 << 20  # --memory-limit's default
SECONDS = float(os.environ.get("SECONDS", "30"))
# Of the connections: 200,000 of them.
_CONNECTIONS_S = 43.0
# Steps per second of each flood of the watched port.
RATES = {
    "connections": 4_651,
    "client_ids": 5_000,
    "topics": 2_000,
    "groups": 5_000,
    "garbage": 2_000,
    "one_byte_writers": 20_000,
    "hostile_names": 1_000,
    "planted_frames": 10,
}
FROM_HONEST_ADDRESS = "connections from the honest clients' address"
# Of which an older revision has no such thing, or holds it for minutes.
ONLY_OF_TODAY = {"planted_frames", "hostile_spool", "forged_events"}


def main() -> int:
    """Run the floods; return the exit status."""
    directory = ROOT / "build" / "attack"
    shutil.rmtree(directory, ignore_errors=True)
    names = os.environ["FLOODS"].split(",") if os.environ.get("FLOODS") else None
    result = attack(directory / "today", ROOT, names)
    if revision := os.environ.get("BASELINE"):
        with worktree(revision, directory / "sources") as sources:
            names = [row["flood"] for row in result["floods"] if row["flood"] not in ONLY_OF_TODAY]
            result["baseline"] = {"revision": revision, **attack(directory / "baseline", sources, names)}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print_table(result)
    for fault in result["faults"]:
        print(f"FAULT {fault}")
    return int(bool(result["faults"]))


def attack(directory: Path, sources: Path, names: Sequence[str] | None) -> dict[str, Any]:
    """Attack the agent of these sources with all or some floods; return the contents of build/attack.json."""
    wanted = [name for name in ("calm", *ORDER) if names is None or name in (*names, "calm")]
    with Lab(directory, sources) as lab:
        for name in wanted:
            say(f"{directory.name}: {name}")
            with lab.phase(name) as phase:
                try:
                    phase.done = run(lab, name)
                except LabError as error:
                    phase.problems.append(str(error))
        lab.stop()
        say(f"{directory.name}: judging")
        times = walk(lab.capture.file, lab.watched.port).times
        reported = read_reported(lab.sink.bootstrap, EVENTS, lab.watched.port, "attacked")
    following = [*(phase.began_us for phase in lab.phases[1:]), time.time_ns() // 1000]
    rows = [
        figures(phase, next_us, reported, times, LIMIT_BYTES)
        for phase, next_us in zip(lab.phases, following, strict=True)
    ]
    found = [fault for row in rows for fault in faults(row, may_lose=row["flood"] == FROM_HONEST_ADDRESS)]
    found += [f"{count} {fault}" for fault, count in reported.faults.items() if count]
    found += faults_of_logs(lab.logs)
    for phase in lab.phases:
        found += hostile_spool.faults(phase.done.get("spools", {}), reported.events)
        if phase.done.get("peak_bytes", 0) > LIMIT_BYTES:
            found.append(f"{phase.name}: {phase.done['peak_bytes'] >> 20} MiB of memory")
        if phase.done.get("sums below zero"):
            found.append(f"{phase.name}: sums below zero in the pipeline's table")
    return {"floods": rows, "events": dict(reported.events), "faults": found}


def run(lab: Lab, name: str) -> dict[str, Any]:
    """Run one flood; return its figures."""
    host, port = lab.listen
    match name:
        case "calm":
            time.sleep(SECONDS)
            return {}
        case "connections":
            return lab.flood("connections", RATES[name], _CONNECTIONS_S)
        case "planted_frames":
            found: dict[str, Any] = {}
            with lab.ring(found):
                done = lab.flood(name, RATES[name], SECONDS)
            return {**done, "ring": found}
        case "slow_http":
            return lab.program("tests.programs.attack.http_flood", "slow", host, port, SECONDS)
        case "metrics":
            return lab.program("tests.programs.attack.http_flood", "hammer", host, port, SECONDS)
        case "large_http":
            return lab.program("tests.programs.attack.http_flood", "large", host, port, SECONDS)
        case "hostile_spool":
            return hostile_spool.offer(lab)
        case "forged_events":
            return forged.forge(lab)
        case _ if name == FROM_HONEST_ADDRESS:
            return lab.flood("connections", RATES["connections"], SECONDS, from_honest_address=True)
        case _:
            return lab.flood(name, RATES[name], SECONDS)


# The pipeline begins with the first event of the topic, so its turn comes before there are many.
ORDER = ("forged_events", "hostile_spool", *RATES, FROM_HONEST_ADDRESS, "slow_http", "metrics", "large_http")


@contextmanager
def worktree(revision: str, directory: Path) -> Iterator[Path]:
    """Check out a revision into a directory for the duration of the block."""
    subprocess.run(["git", "worktree", "add", "--detach", directory, revision], cwd=ROOT, check=True)
    try:
        yield directory
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", directory], cwd=ROOT, check=True)


def print_table(result: dict[str, Any]) -> None:
    """Print a line per flood, with the baseline's below if there is one."""
    print(f"{'':46}{'reported':>9}{'missing':>9}{'peak MiB':>9}{'interval s':>11}{'health s':>9}{'done':>9}")
    before = {row["flood"]: row for row in result.get("baseline", {}).get("floods", ())}
    for row in result["floods"]:
        print_row(row["flood"], row)
        if row["flood"] in before:
            print_row(f"  at {result['baseline']['revision']}", before[row["flood"]])


def print_row(name: str, row: dict[str, Any]) -> None:
    percent = "-" if row["reported_percent"] is None else f"{row['reported_percent']:.2f} %"
    figures = f"{percent:>9}{row['missing']:>9}{row['peak_mib']:>9}{row['longest_interval_s']:>11}"
    losses = ", ".join(f"{loss} {count}" for loss, count in row["losses"].items())
    print(f"{name:46}{figures}{row['slowest_health_s']:>9}{row['done'].get('done', ''):>9}  {losses}")


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
