"""A client in a pod, from its socket to the agent's events; a stand-in serves the cluster's API."""

from __future__ import annotations

import json
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.api_server import ApiServer, pod
from tests.lab.cgroups import cgroup
from tests.lab.processes import start, wait_until
from tests.lab.product import Agent

pytestmark = pytest.mark.root

# It leaves when its standard input ends.
CLIENT = "import socket, sys; to = socket.create_connection(('127.0.0.1', {})); to.sendall(b'data'); sys.stdin.read()"


def test_a_pod_that_is_made_known_while_its_client_is_connected_is_named_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = secrets.token_hex(32)
    with (
        ApiServer(tmp_path) as server,
        cgroup(f"cri-containerd-{container}.scope") as inside,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        server.put(pod(name="another"))
        port = listener.getsockname()[1]
        flags = ("--sink", "stdout", "--ports", str(port), "--side", "client", "--interval-s", "0.3")
        with Agent(tmp_path, *flags, "--kubernetes", "on", "--node", "node-1") as agent:

            def workloads(kind: str) -> list[dict[str, Any]]:
                events = [json.loads(line) for line in agent.output.read_text().splitlines()]
                return [event["workload"] for event in events if event["kind"] == kind]

            command = (sys.executable, "-c", CLIENT.format(port))
            with start(command, log=tmp_path / "client.log", inside=inside, piped_input=True):
                wait_until(lambda: bool(workloads("open")), "the connection")
                server.put(pod(container, app="orders"))
                wait_until(lambda: bool(server.watches()), "the watch")
            wait_until(lambda: bool(workloads("close")), "its end")
    opened, closed = workloads("open")[0], workloads("close")[0]
    assert (opened["container_id"], opened["pod"]) == (container, None)
    assert (closed["container_id"], closed["pod"], closed["labels"]) == (container, "orders-0", {"app": "orders"})
