"""A spool on a disk that is full or read-only."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kafka_probe.sinks.outbox import Outbox
from kafka_probe.sinks.spool import Spool
from tests.lab.processes import wait_until
from tests.unit.sinks.spooled import MIB, drained, files, line, on_disk

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("nothing_waits_long")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system that holds a megabyte; yield its directory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("why", ["No space left on device", "Read-only file system"])
def test_a_disk_that_refuses_is_logged_once_memory_takes_over_and_the_disk_is_used_again(
    small_disk: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    full = why.startswith("No space")
    spool = Spool(small_disk / "spool", 64 * MIB)
    outbox = Outbox(100_000, spool)
    outbox.put([line(0)])
    on_disk(outbox)
    refuse(small_disk, full)
    for number in range(1, 10):
        outbox.put([line(number, padding=5000)])
    wait_until(lambda: spool.failures > 3, "refusals")
    assert outbox.waiting_bytes > 9 * 5000
    assert caplog.text.count("cannot be written") == 1
    assert why in caplog.text
    allow(small_disk, full)
    on_disk(outbox)

    assert drained(outbox) == list(range(10))
    assert set(outbox.lost.values()) == {0}
    assert caplog.text.count("can be written again") == 1
    outbox.abandon()
    assert files(small_disk / "spool") == []
    spool.close()


def refuse(disk: Path, full: bool) -> None:
    """Make the disk full to the last byte, or unwritable."""
    if full:
        with suppress(OSError), (disk / "other").open("wb", 0) as other:
            while other.write(bytes(4096)):
                pass
        assert shutil.disk_usage(disk).free == 0
    else:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


def allow(disk: Path, full: bool) -> None:
    if full:
        (disk / "other").unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


def test_what_waits_is_delivered_from_a_full_disk_and_its_space_is_given_back(small_disk: Path) -> None:
    spool = Spool(small_disk / "spool", 64 * MIB)
    outbox = Outbox(10 * MIB, spool)
    for number in range(100):
        outbox.put([line(number, padding=50_000)])
    wait_until(lambda: spool.failures > 0, "a full disk")
    refuse(small_disk, full=True)
    assert drained(outbox) == list(range(100))
    outbox.abandon()
    assert files(small_disk / "spool") == []
    spool.close()


def test_what_a_full_disk_cannot_take_at_the_end_is_counted(small_disk: Path) -> None:
    spool = Spool(small_disk / "spool", 64 * MIB)
    refuse(small_disk, full=True)
    outbox = Outbox(MIB, spool)
    outbox.put([line(0), line(1)])
    outbox.abandon()
    assert outbox.lost["sink_unsent_at_exit"] == 2
    spool.close()
