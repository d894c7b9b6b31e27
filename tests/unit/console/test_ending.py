"""Commands that read tables end: their process, and their questions on Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kafka_probe_console.tables import opened
from tests.lab.processes import wait_until

_STOPS_READING = """
import sys
from kafka_probe.__main__ import main
from kafka_probe_console.tables import opened
with opened(sys.argv[1]) as tables:
    tables.require("texts")
    next(tables.rows("SELECT * FROM texts"))
sys.argv[1:] = ["--version"]
main()
"""


def test_a_table_that_was_not_read_to_its_end_does_not_abort_the_process(tmp_path: Path) -> None:
    texts = pa.table({"text": [os.urandom(50).hex() for _ in range(20_000)]})
    for _ in range(24):
        write_deltalake(f"{tmp_path}/texts", texts, mode="append")
    command = [sys.executable, "-c", _STOPS_READING, str(tmp_path)]
    for _ in range(3):  # the threads that still read do not abort it each time
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith("kafka-probe ")


@pytest.fixture
def _ctrl_c_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt: a shell starts what runs beside something else with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_ctrl_c_ends_a_question(tmp_path: Path) -> None:
    query = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range % 7 = b.range % 11"
    with opened(str(tmp_path)) as tables, tables.time_limit(60):

        def interrupt() -> None:
            wait_until(lambda: bool(tables._running), "the query to run")
            os.kill(os.getpid(), signal.SIGINT)

        Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            next(tables.rows(query))
        assert [*tables.rows("SELECT 1")] == [(1,)]  # which the time limit would refuse
