"""Runs in a guest: the golden conversations marked `kernel`, once per backend and buffer.

Each time is a process of its own, forked from one that has imported what takes long under emulation. Into /results go,
per time, what became of each test, what was seen of its conversation, and the instructions of the programs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kafka_probe.agent  # noqa: F401  # so that each fork has it
from tests.builders import wire  # noqa: F401  # the same

if TYPE_CHECKING:
    from tests.lab.capture import Capture

RESULTS = Path("/results")
FLAGS = ("--color=no", "--durations=8", "-p", "no:cacheprovider")


def main() -> int:
    selection, *names = sys.argv[1:]
    failed = [name for name in names if _run(selection, *name.split("-"))]
    return int(bool(failed))


def _run(selection: str, backend: str, buffer: str) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.environ.update(GOLDEN_BACKEND=backend, GOLDEN_BUFFER=buffer)
    recorder = Recorder()
    print(f"{backend}, {buffer}", flush=True)
    status = pytest.main([*FLAGS, "-m", selection, "tests/golden"], [recorder])
    (RESULTS / f"{backend}-{buffer}.json").write_text(json.dumps(recorder.report(int(status))))
    sys.stdout.flush()
    os._exit(status)


class Recorder:
    """A pytest plugin that keeps the reports of a run."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._tests: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._seen: dict[str, object] = {}
        self._instructions: dict[str, int] = {}

    def report(self, status: int) -> dict[str, object]:
        return {
            "status": status,
            "seconds": round(time.monotonic() - self._start, 1),
            "tests": self._tests,
            "failures": self._failures,
            "seen": self._seen,
            "instructions": self._instructions,
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._tests[report.nodeid] = report.outcome
        if report.failed:
            self._failures[report.nodeid] = report.longreprtext

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Generator[None, Any, Any]:
        result = yield
        capture: Any = item.funcargs.get("capture")
        if capture:
            self._instructions = capture.instructions
            if not item.get_closest_marker("racing"):
                self._seen[item.nodeid] = _reported(capture)
        return result


def _reported(capture: Capture) -> dict[str, object]:
    """Return the losses and observations at a conversation's ends, client first, without times and addresses."""
    ends = sorted(capture.ends, key=lambda end: end.identity.server_side)
    seen = [[end.identity.server_side, str(end.opaque), *map(repr, end.frames)] for end in ends]
    return {"seen": seen, "lost": capture.lost()}


if __name__ == "__main__":
    sys.exit(main())
