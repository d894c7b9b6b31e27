"""A guest reports its end, in order or not, and what a machine needs is fetched once and named.

Part of `make test-kernels`, not of `make test`: each starts a machine for it.
"""

from __future__ import annotations

import psutil
import pytest

from tests.kernel.archive import kernel
from tests.kernel.machine import Job, run
from tests.kernel.matrix import LOGS
from tests.kernel.root import root_disk
from tests.lab.processes import LabError

pytestmark = pytest.mark.root

SERIES = "6.12"


def test_a_job_ends_with_its_status_and_its_results() -> None:
    outcome = run(
        kernel(SERIES), root_disk(), Job({}, "uname -r >/results/release; exit 7"), LOGS / "job.log", timeout_s=600
    )
    assert (outcome.status, outcome.results["release"].decode().strip()) == (7, kernel(SERIES).release)


def test_a_guest_that_panics_is_no_success() -> None:
    log = LOGS / "panic.log"
    with pytest.raises(LabError, match="did not end in order"):
        run(kernel(SERIES), root_disk(), Job({}, "echo c >/proc/sysrq-trigger"), log, timeout_s=600)
    assert "sysrq triggered crash" in log.read_text(errors="replace")


def test_a_guest_that_hangs_is_stopped() -> None:
    with pytest.raises(LabError, match="not done after 1 s"):
        run(kernel(SERIES), root_disk(), Job({}, "read never"), LOGS / "hang.log", timeout_s=1)
    assert [child for child in psutil.Process().children() if child.name().startswith("qemu")] == []


def test_a_kernel_that_was_fetched_needs_nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernel(SERIES)
    monkeypatch.setenv("PATH", "/nowhere")
    assert kernel(SERIES) == found


def test_a_missing_emulator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, found = root_disk(), kernel(SERIES)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabError, match="qemu-system-x86_64 is missing: install qemu-system-x86"):
        run(found, disk, Job({}, "exit 0"), LOGS / "missing.log", timeout_s=1)
