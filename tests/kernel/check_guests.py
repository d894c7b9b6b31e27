"""A guest reports its end, whether it stops in order or not.

Part of `make test-kernels`, not of `make test`: each starts a machine for it.
"""

from __future__ import annotations

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
