"""Runs the demo in two parts, on a machine each: `python -m tests.demo.in_parts clients|pipeline BOOTSTRAP FILE`.

`clients` runs the clients and an agent, and writes what is known of the clients to the file. `pipeline` sums up, and
compares with the file; if something is missing, it names that, and the exit status is 1. So an emulated guest need not
run Spark, which takes an hour there and does not depend on the kernel.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from kafka_probe.check import require_capture
from tests.demo.__main__ import DIRECTORY, RATE, RECORDS, prepare, print_traffic, work
from tests.demo.stage import Stage
from tests.lab.clients import Client, RunningClient, clients, topics
from tests.lab.product import report, run_pipeline


def main(part: str, bootstrap: str, file: Path) -> int:
    """Run a part of the demo; return the exit status."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    lab = clients(bootstrap, DIRECTORY, records=RECORDS, rate=RATE)
    if part == "clients":
        file.write_text(json.dumps({one.client.client_id: facts(one) for one in run_clients(bootstrap, lab)}))
        return 0
    known = json.loads(file.read_text())
    run_pipeline(bootstrap, DIRECTORY / "pipeline")
    seen = report(bootstrap)
    missing = print_traffic(seen, lab, [as_started(one, **known[one.client_id]) for one in lab])
    for sentence in missing:
        print(sentence, file=sys.stderr)
    return bool(missing)


def run_clients(bootstrap: str, lab: list[Client]) -> list[RunningClient]:
    """Run the clients from start to end, beside an agent."""
    require_capture()
    stage = Stage(DIRECTORY, bootstrap)
    prepare(stage, topics(lab))
    with stage.agents():
        return work(stage, lab)


def facts(one: RunningClient) -> dict[str, str | int]:
    """Return what a client's own machine knows of it."""
    client = one.client
    return {
        "pid": one.process.pid,
        "cgroup": one.cgroup,
        "comm": client.comm,
        "software_version": client.software_version,
    }


def as_started(client: Client, *, pid: int, cgroup: str, **own: str) -> RunningClient:
    """Return a client that has run on another machine. own: fields of Client that differ there."""
    process = SimpleNamespace(pid=pid)
    return RunningClient(replace(client, **own), process, cgroup, DIRECTORY)  # type: ignore[arg-type]  # of elsewhere


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
