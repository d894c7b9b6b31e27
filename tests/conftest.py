"""Skips tests marked `root` for other users, and reports at the end how many and how to run them."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

NEEDS_ROOT = "needs root"
WHAT_FOR = "to load BPF programs, to make namespaces or cgroups, or to act as several users"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip(f"{NEEDS_ROOT}: {WHAT_FOR}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    yield
    skipped = [report for report in terminalreporter.getreports("skipped") if NEEDS_ROOT in str(report.longrepr)]
    if skipped:
        folders = Counter("/".join(Path(report.nodeid).parts[:2]) for report in skipped)
        where = ", ".join(f"{count} of {folder}" for folder, count in sorted(folders.items()))
        command = shlex.join([sys.executable, "-m", "pytest", *terminalreporter.config.invocation_params.args])
        terminalreporter.write_line(
            f"{len(skipped)} tests need root and were skipped ({where}). To run them: sudo {command}"
        )
