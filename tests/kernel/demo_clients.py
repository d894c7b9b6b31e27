"""Runs the clients of the demo and an agent in a guest, with a broker outside: `python -m tests.kernel.demo_clients`.

Arguments: the broker's host:port, and the file that gets what the guest knows of each client, as JSON. The demo's
pipeline runs outside: emulated, Spark takes an hour, and it does not depend on the kernel.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kafka_probe.check import require_capture
from tests.demo.__main__ import DIRECTORY, RATE, RECORDS, prepare, work
from tests.demo.stage import Stage
from tests.lab.clients import clients, topics


def main(bootstrap: str, result: Path) -> None:
    """Run the clients from start to end."""
    require_capture()
    DIRECTORY.mkdir(parents=True)
    stage = Stage(DIRECTORY, bootstrap)
    lab = clients(bootstrap, DIRECTORY, records=RECORDS, rate=RATE)
    prepare(stage, topics(lab))
    with stage.agents():
        started = work(stage, lab)
    facts = {
        one.client.client_id: {
            "pid": one.process.pid,
            "cgroup": one.cgroup,
            "comm": one.client.comm,
            "software_version": one.client.software_version,
        }
        for one in started
    }
    result.write_text(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
