"""Agents at both ends agree on a guest's client behind a real NAT and the host's real broker.

Part of `make test-kernels`, not of `make test`: the agent compiles its programs in the guest, where that takes minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.archive import kernel
from tests.kernel.machine import Job, run
from tests.kernel.matrix import LOGS, ROOT
from tests.kernel.outside import TAP, give_to_guest
from tests.kernel.root import root_disk
from tests.lab.broker import Broker
from tests.lab.network import SCRIPTS, nat
from tests.lab.product import Agent
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker]

SERIES = "6.12"
FILES = {name: ROOT / name for name in ("agent", "bpf", "tests/lab", str(SCRIPTS.relative_to(ROOT)))}
SCRIPT = """
export HOME=/root PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 PYTHONPATH=agent:. PYTHON=python3 LIBRARY=kafka_python
{network}
python3 -m kafka_probe run --sink stdout --ports {port} --ready-file /tmp/ready >/results/events &
agent=$!
until [ -e /tmp/ready ]; do kill -0 $agent || exit 1; sleep 0.1; done
ROLE=produce BOOTSTRAP={bootstrap} RECORDS=20 bash vagrant/scripts/client.sh || exit 1
ROLE=consume BOOTSTRAP={bootstrap} RECORDS=20 bash vagrant/scripts/client.sh || exit 1
kill $agent
wait $agent
"""


def test_flow_ids_agree_through_a_nat(tmp_path: Path) -> None:
    disk, found = root_disk(), kernel(SERIES)
    with nat(clients=1) as network, network.broker.inside(), Broker(tmp_path, host=network.broker.address) as broker:
        create_topics(broker.bootstrap, ["orders"], partitions=1)
        (client,) = network.clients
        script = SCRIPT.format(network=give_to_guest(client), bootstrap=broker.bootstrap, port=broker.port)
        with Agent(tmp_path, "--sink", "stdout", "--ports", str(broker.port)) as agent, client.inside():
            outcome = run(found, disk, Job(FILES, script), LOGS / "nat.log", timeout_s=900, tap=TAP)
    assert outcome.status == 0
    inside = events(outcome.results["events"])
    assert {event["backend"] for event in inside if event["kind"] == "agent"} == {"fentry"}
    client_side, server_side = opened(inside), opened(events(agent.output.read_bytes()))
    assert len(client_side) >= 2
    assert client_side.keys() == server_side.keys()
    for flow_id, end in client_side.items():
        assert (end["side"], server_side[flow_id]["side"]) == ("client", "server")
        assert host(end["local"]) == client.address
        assert host(server_side[flow_id]["peer"]) == network.gateway_address


def events(output: bytes) -> list[dict[str, Any]]:
    """Return an agent's events."""
    return [json.loads(line) for line in output.splitlines()]


def opened(events: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the ends of connections among the events, by flow id."""
    return {event["flow_id"]: event for event in events if event["kind"] == "open"}


def host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]
