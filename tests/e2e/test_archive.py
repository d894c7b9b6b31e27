"""The archive of an agent in a real broker's topic: frames of a killed client, and those of all traffic."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_probe.capture.sample import Flag
from tests.builders.fed_agent import samples_of
from tests.lab.broker import Broker
from tests.lab.conversation import exchange, kafka
from tests.lab.processes import start, wait_until
from tests.lab.product import EVENTS, Agent, Watched
from tests.lab.topics import existing, read_topic

pytestmark = [pytest.mark.root, pytest.mark.broker]

FRAMES = "kafka-probe.frames"
RESPONSE = int(Flag.RESPONSE)
# It asks twice, then waits to be killed.
CLIENT = """
import signal, socket, sys
from tests.builders.wire import METADATA, request
broker = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for correlation_id in (41, 42):
    broker.sendall(request(METADATA, 12, correlation_id).wire)
    size = int.from_bytes(broker.recv(4, socket.MSG_WAITALL), "big")
    broker.recv(size, socket.MSG_WAITALL)
print("asked", flush=True)
signal.pause()
"""


def events(broker: Broker, topic: str, kind: str) -> list[dict[str, Any]]:
    if not existing(broker.bootstrap, [topic]):
        return []
    lines = (line for _, value in read_topic(broker.bootstrap, topic) for line in value.splitlines())
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker") as running:
        yield running


def test_the_last_exchanges_of_a_killed_client_are_in_the_topic_of_frames_by_default(
    broker: Broker, tmp_path: Path
) -> None:
    with Agent(tmp_path, "--ports", str(broker.port), "--bootstrap-servers", broker.bootstrap, "--interval-s", "1"):
        output = tmp_path / "client.out"
        client = start([sys.executable, "-c", CLIENT, str(broker.port)], log=tmp_path / "client.log", stdout=output)
        try:
            wait_until(lambda: "asked" in output.read_text(), "the client to ask")
        finally:
            client.send_signal(signal.SIGKILL)
            client.wait()

        def closes() -> list[dict[str, Any]]:
            found = events(broker, EVENTS, "close")
            return [event for event in found if client.pid == event["workload"]["pid"]]

        wait_until(lambda: bool(closes()), "its close", timeout_s=60)
    (close,) = closes()
    found = [sample for event in events(broker, FRAMES, "frames") for sample in samples_of(event)]
    frames = [sample for sample in found if sample["conn_id"] == close["conn_id"] and sample["part"] == 0]
    assert [(one["correlation_id"], one["flags"] & RESPONSE) for one in frames] == [(41, 0), (41, 1), (42, 0), (42, 1)]
    assert (close["recorded_frames"], close["evicted"], close["owner_exiting"]) == (4, False, True)
    assert {one["flow_id"] for one in frames} == {close["flow_id"]}


def test_all_frames_of_both_ends_are_archived_in_their_order_with_what_was_copied(port: int, tmp_path: Path) -> None:
    watched = Watched(tmp_path, port, "--archive", "all")
    with watched.agent, kafka(port) as talk:
        exchange(talk, range(1, 200))
        samples = wait_for_samples(watched, 2 * 2 * 199)
    for side in ("client", "server"):
        of_side = [one for one in samples if one["side"] == side and one["part"] == 0]
        ids = [(one["correlation_id"], one["flags"] & RESPONSE) for one in of_side]
        assert ids[-2 * 199 :] == [(number, response) for number in range(1, 200) for response in (0, 1)]
        times = [one["monotonic_ns"] for one in of_side]
        assert times == sorted(times)
    client, server = ([one["data"] for one in samples if one["side"] == side] for side in ("client", "server"))
    assert client[-400:] == server[-400:]


def wait_for_samples(watched: Watched, frames: int) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        return [sample for event in watched.events(kind="frames") for sample in samples_of(event)]

    wait_until(lambda: sum(one["part"] == 0 for one in found()) >= frames, "the frames")
    return found()
