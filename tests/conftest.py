"""Skip tests marked `root` for other users, and end the output with how to run them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Generator

import pytest

NEEDS_ROOT = "needs root"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    yield
    skipped = [report for report in terminalreporter.getreports("skipped") if NEEDS_ROOT in str(report.longrepr)]
    if skipped:
        command = shlex.join([sys.executable, "-m", "pytest", *terminalreporter.config.invocation_params.args])
        terminalreporter.write_line(f"{len(skipped)} tests need root and were skipped. To run them: sudo {command}")
