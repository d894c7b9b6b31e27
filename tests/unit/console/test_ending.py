"""How a command that read tables ends its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

_STOPS_READING = """
import sys
from kafka_probe.cli import main
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
