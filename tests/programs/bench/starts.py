"""Measures the time from an agent's start to its first event, with an empty and with a filled cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab.processes import free_port

RESTARTS = 10


def measure_starts() -> dict[str, list[float]]:
    """Return the times in seconds of RESTARTS starts of each kind."""
    with TemporaryDirectory() as directory:
        cache = Path(directory, "cache")
        first_event_s(cache)
        return {
            "first_event_s": [first_event_s(cache) for _ in range(RESTARTS)],
            "first_event_without_cache_s": [first_event_s("off") for _ in range(RESTARTS)],
        }


def first_event_s(cache_dir: Path | str) -> float:
    """Start an agent as in production, except that its events go to a pipe; return when the first one arrives."""
    address = f"127.0.0.1:{free_port()}"
    flags = ("--sink", "stdout", "--listen", address, "--cache-dir", cache_dir, "--log-level", "warning")
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-m", "kafka_probe", "run", *flags], stdout=subprocess.PIPE) as agent:
        assert agent.stdout
        assert os.read(agent.stdout.fileno(), 1), "the agent ended without an event"
        took_s = time.monotonic() - began
        agent.terminate()
        agent.communicate()
    return took_s
