"""A client in a guest, behind a real NAT, at work on a real broker of the host's: the agents at both ends agree.

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
from tests.kernel.root import root_disk
from tests.lab.broker import Broker
from tests.lab.network import SCRIPTS, Namespace, nat
from tests.lab.product import Agent
from tests.lab.topics import create_topics

pytestmark = [pytest.mark.root, pytest.mark.broker]

SERIES = "6.12"
TAP = "tap0"
FILES = {name: ROOT / name for name in ("agent", "bpf", "tests/lab", str(SCRIPTS.relative_to(ROOT)))}
SCRIPT = """
export HOME=/root PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 PYTHONPATH=agent:. PYTHON=python3 LIBRARY=kafka_python
ip address add {address}/24 dev eth0
ip link set eth0 up
ip route add default via {gateway}
python3 -m kafka_probe run --sink stdout --ports {port} --ready-file /tmp/ready >/results/events &
agent=$!
until [ -e /tmp/ready ]; do kill -0 $agent || exit 1; sleep 0.1; done
ROLE=produce BOOTSTRAP={address_of_broker}:{port} RECORDS=20 bash vagrant/scripts/client.sh || exit 1
ROLE=consume BOOTSTRAP={address_of_broker}:{port} RECORDS=20 bash vagrant/scripts/client.sh || exit 1
kill $agent
wait $agent
"""


def test_flow_ids_agree_through_a_nat(tmp_path: Path) -> None:
    disk, found = root_disk(), kernel(SERIES)
    with nat(clients=1) as network, network.broker.inside(), Broker(tmp_path, host=network.broker.address) as broker:
        create_topics(broker.bootstrap, ["orders"], partitions=1)
        (client,) = network.clients
        places = {"address": client.address, "address_of_broker": broker.host, "port": broker.port}
        script = SCRIPT.format(gateway=give_to_guest(client), **places)
        with Agent(tmp_path, "--sink", "stdout", "--ports", str(broker.port)) as agent, client.inside():
            outcome = run(found, disk, Job(FILES, script), LOGS / "nat.log", timeout_s=900, tap=TAP)
    assert outcome.status == 0
    connecting = opened(outcome.results["events"].splitlines())
    accepting = opened(agent.output.read_bytes().splitlines())
    assert len(connecting) >= 2
    assert connecting.keys() == accepting.keys()
    for flow_id, end in connecting.items():
        assert (end["side"], accepting[flow_id]["side"]) == ("connecting", "accepting")
        assert host(end["local"]) == client.address
        assert host(accepting[flow_id]["peer"]) == network.gateway_address


def give_to_guest(client: Namespace) -> str:
    """Let a guest on TAP be the client in place of the namespace itself; returns the gateway's address."""
    (route,) = (route for route in json.loads(client.run("ip", "-json", "route")) if "gateway" in route)
    client.run("ip", "address", "flush", "dev", "eth0")
    client.run("ip", "tuntap", "add", TAP, "mode", "tap")
    client.run("ip", "link", "add", "bridge", "type", "bridge")
    for device in ("eth0", TAP):
        client.run("ip", "link", "set", device, "master", "bridge", "up")
    client.run("ip", "link", "set", "bridge", "up")
    return str(route["gateway"])


def opened(lines: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """The ends of connections that an agent saw, by flow id."""
    events = map(json.loads, lines)
    return {event["flow_id"]: event for event in events if event["kind"] == "open"}


def host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]
