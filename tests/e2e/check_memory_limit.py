"""The agent stays below `--memory-limit` while many short connections, each with names of its own, flood it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.lab.cgroups import memory_cgroup
from tests.lab.network import Namespace
from tests.lab.processes import LabError, free_port
from tests.lab.product import COULD_NOT_START, Agent

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
LIMIT_MIB = 480  # the least that is accepted
CONNECTIONS, SECONDS = 20_000, 7
FLOODED_MIB = 200  # without bounds it would be above 220
INTERVAL_S = 1.0
LONGEST_INTERVAL_US = 10_000_000  # twice the time of a report


class Events:
    """An agent's events, read through a pipe: a file's page cache would count for its cgroup."""

    def __init__(self, fifo: Path) -> None:
        os.mkfifo(fifo)
        self.agents: list[dict[str, Any]] = []
        self.requests: Counter[str] = Counter()  # by whether the flow has a connection
        self.closes = 0
        self._thread = Thread(target=self._read, args=(fifo,))
        self._thread.start()

    def _read(self, fifo: Path) -> None:
        with fifo.open() as lines:
            for event in map(json.loads, lines):
                match event["kind"]:
                    case "agent":
                        self.agents.append(event)
                        self.closes += sum(n for name, n in event["other"].items() if name.startswith("close/"))
                    case "flow":
                        self.requests["known" if event["conn_id"] else "other"] += event["requests"]
                    case "close":
                        self.closes += 1

    def join(self) -> None:
        self._thread.join()


def test_a_flood_of_connections_with_names_of_their_own_stays_below_the_limit(tmp_path: Path) -> None:
    events = Events(tmp_path / "agent.out")
    flags = ("--ports", "9092", "--side", "server", "--sink", "stdout", "--interval-s", str(INTERVAL_S))
    server = ("--listen", f"127.0.0.1:{free_port()}", "--memory-limit", f"{LIMIT_MIB}MiB")
    with closing(Namespace()) as inside, memory_cgroup("agent-memory") as (group, peak):
        uncached = {"KAFKA_PROBE_CACHE_DIR": "off"}  # so that the compiler's peak is below the limit, too
        agent = Agent(tmp_path, *flags, "--netns", inside.path, *server, inside=group, environment=uncached)
        with agent, inside.inside():
            flood = (sys.executable, "-m", "tests.programs.attack.flood", "connections", "127.0.0.7", "9092")
            assert peak.read() < LIMIT_MIB * MIB
            peak.reset()  # the compiler has ended
            output = subprocess.check_output([*flood, str(CONNECTIONS), str(SECONDS)], cwd=ROOT)
        assert peak.read() < FLOODED_MIB * MIB
    events.join()
    flooded = json.loads(output)
    losses, counters = events.agents[-1]["losses"], events.agents[-1]["counters"]
    assert max(agent["ts"] - agent["since"] for agent in events.agents) < LONGEST_INTERVAL_US
    # Which bound comes first depends on the machine: that of the counts, or the share of the ring of one peer.
    assert events.requests["other"] + losses["peer_limited"] > 0
    # What the agent read is counted, and the rest by reason.
    full = losses["ring_full"] + losses["peer_limited"] + losses["connection_unknown"]
    unread = full + losses["frame_incomplete"] + losses["before_proof"]
    assert counters["requests"] - unread <= events.requests.total() <= counters["requests"] <= flooded["requests"]
    assert events.closes >= flooded["done"] - full - losses["map_full"]


def test_a_limit_that_the_settings_exceed_is_refused_with_what_to_lower(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=rf"status {COULD_NOT_START}:(?s:.*)--memory-limit 100 MiB is too low.*lower"):
        Agent(tmp_path, "--sink", "stdout", "--memory-limit", "100MiB").__enter__()
