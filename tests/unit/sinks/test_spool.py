"""Events on disk: in order, bounded, across restarts and crashes; and a failing disk does not stop the agent."""

from __future__ import annotations

import ctypes
import errno
import gzip
import mmap
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kafka_probe.errors import StartError
from kafka_probe.sinks import outbox as outbox_module
from kafka_probe.sinks.batch import EVENT_BYTES, Batch
from kafka_probe.sinks.outbox import Outbox
from kafka_probe.sinks.spool import BLOCK_BYTES, Segment, Spool
from tests.lab.processes import start, wait_until
from tests.unit.sinks.spooled import MIB, drained, files, line, on_disk

pytestmark = pytest.mark.usefixtures("nothing_waits_long")

SOURCES = Path(outbox_module.__file__).parents[2]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", 64 * MIB)
    yield spool
    spool.close()


def test_what_waits_goes_to_the_disk_and_comes_back_before_what_came_later(opened: Spool, tmp_path: Path) -> None:
    outbox = Outbox(MIB, opened)
    for number in range(20):
        outbox.put([line(number)], key="a")
    on_disk(outbox)
    assert outbox.spooled_bytes == 20 * BLOCK_BYTES
    outbox.put([line(20)], key="a")

    assert drained(outbox) == list(range(21))
    assert outbox.events_delivered == 21
    assert (outbox.waiting_bytes, outbox.spooled_bytes) == (0, 0)
    outbox.abandon()
    assert files(tmp_path / "spool") == []


def number_of(batch: Batch | None) -> int:
    assert batch
    return int(batch.lines.split()[0])


def cached_bytes(file: Path) -> int:
    """Return how much of a file is in the page cache, by mincore(2)."""
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        in_memory = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        assert not ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), in_memory)
        del first  # else the mapping cannot be closed
        return mmap.PAGESIZE * sum(page & 1 for page in in_memory)


def test_what_is_on_the_disk_is_not_in_memory_too(opened: Spool, tmp_path: Path) -> None:
    segment = opened.write(Batch(line(1, MIB), 1), free_bytes=2 * MIB)
    assert segment
    file = tmp_path / "spool" / segment.name
    assert file.stat().st_size > MIB // 2
    assert cached_bytes(file) == 0
    file.read_bytes()
    assert cached_bytes(file) >= MIB // 2


def test_a_kernel_that_takes_no_advice_keeps_the_file(
    opened: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fadvise", partial(fail, errno.ENOSYS))
    segment = opened.write(Batch(line(1), 1), free_bytes=MIB)
    assert segment
    assert (tmp_path / "spool" / segment.name).exists()


def fail(code: int, *_: object) -> None:
    raise OSError(code, os.strerror(code))


def test_what_is_delivered_soon_never_touches_the_disk(
    opened: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "SPOOL_AFTER_S", 60.0)
    before = (tmp_path / "spool").stat().st_mtime_ns
    outbox = Outbox(MIB, opened)
    outbox.put([line(0)])
    assert drained(outbox) == [0]
    outbox.abandon()
    assert (tmp_path / "spool").stat().st_mtime_ns == before


def test_half_the_memory_is_reason_enough_to_use_the_disk(opened: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "SPOOL_AFTER_S", 60.0)
    outbox = Outbox(1000, opened)
    for number in range(100):
        outbox.put([line(number, padding=200)])
        wait_until(lambda: outbox.waiting_bytes <= 500, "space in memory", every_s=0.001)
    assert drained(outbox) == list(range(100))
    outbox.abandon()


def test_the_batch_on_its_way_may_be_written_meanwhile_and_is_delivered_once(opened: Spool, tmp_path: Path) -> None:
    outbox = Outbox(MIB, opened)
    outbox.put([line(0)])
    batch = outbox.head()
    assert batch
    on_disk(outbox)
    outbox.put([line(1)])
    outbox.finish(batch)
    assert number_of(outbox.head()) == 1
    outbox.abandon()
    assert len(files(tmp_path / "spool")) == 1
    assert (outbox.events_delivered, set(outbox.lost.values())) == (1, {0})


def test_a_batch_that_is_delivered_while_it_is_written_leaves_no_file(
    opened: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, writing, delivered = opened.write, threading.Event(), threading.Event()

    def slow(batch: Batch, free_bytes: int) -> Segment | None:
        segment = write(batch, free_bytes)
        writing.set()
        delivered.wait(5)
        return segment

    monkeypatch.setattr(opened, "write", slow)
    outbox = Outbox(MIB, opened)
    outbox.put([line(0)])
    assert writing.wait(5)
    batch = outbox.head()
    assert batch
    outbox.finish(batch)
    delivered.set()
    outbox.abandon()
    assert files(tmp_path / "spool") == []
    assert outbox.events_delivered == 1


def test_a_disk_that_stands_still_does_not_hold_up_the_capture(opened: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    standing, moving = threading.Event(), threading.Event()

    def fsync(_: int) -> None:
        standing.set()
        moving.wait(10)

    monkeypatch.setattr(os, "fsync", fsync)
    outbox = Outbox(MIB, opened)
    outbox.put([line(0)])
    assert standing.wait(5)
    outbox.put([line(1)])
    assert (outbox.waiting_bytes, outbox.spooled_bytes) == (len(line(0)) + len(line(1)), 0)
    moving.set()
    outbox.abandon()


def test_what_exceeds_disk_and_memory_is_counted_and_the_oldest_is_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10 * BLOCK_BYTES)
    outbox = Outbox(5000, spool)
    for number in range(40):
        outbox.put([line(number, padding=1000)])
        wait_until(lambda: outbox.waiting_bytes <= 2500 or outbox.spooled_bytes == 10 * BLOCK_BYTES, "space")
    taken = sum(file.stat().st_blocks * 512 for file in files(tmp_path))
    assert taken <= 10 * BLOCK_BYTES == outbox.spooled_bytes
    arrived = drained(outbox)
    assert 10 < len(arrived) < 20
    assert arrived == list(range(len(arrived)))
    assert outbox.lost["sink_buffer_full"] == 40 - len(arrived)
    assert spool.failures == 0
    outbox.abandon()
    spool.close()


def test_more_files_than_are_kept_in_mind_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "SPOOL_FILES", 3)
    spool = Spool(tmp_path, MIB)
    outbox = Outbox(100, spool)
    for number in range(3):
        outbox.put([line(number)])
        on_disk(outbox)
    outbox.put([line(3)])
    outbox.put([line(4, padding=200)])
    assert outbox.lost["sink_buffer_full"] == 1
    assert len(list(tmp_path.glob("*.gz"))) == 3
    assert drained(outbox) == [0, 1, 2, 3]
    outbox.abandon()
    spool.close()


def test_what_a_run_leaves_is_delivered_first_by_the_next_with_its_own_key(tmp_path: Path) -> None:
    first, second = "87b315b7965841f6", "0123456789abcdef"
    spool = Spool(tmp_path, MIB)
    outbox = Outbox(MIB, spool)
    outbox.put([line(0), line(1)], key=first)
    outbox.abandon()
    assert outbox.lost["sink_unsent_at_exit"] == 0
    spool.close()

    spool = Spool(tmp_path, MIB)
    outbox = Outbox(MIB, spool)
    outbox.put([line(2)], key=second)
    on_disk(outbox)
    old = outbox.head()
    assert old == Batch(b"0 \n1 \n", 2, first)
    outbox.finish(old)
    new = outbox.head()
    assert new == Batch(b"2 \n", 1, second)
    outbox.finish(new)
    outbox.abandon()
    spool.close()
    assert files(tmp_path) == []


def test_a_file_is_for_its_owner_only_and_readable_with_gzip(opened: Spool, tmp_path: Path) -> None:
    opened.write(Batch(b"{}\n{}\n", 2, "abc"), MIB)
    (file,) = files(tmp_path / "spool")
    assert gzip.decompress(file.read_bytes()) == b"{}\n{}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700


def test_the_largest_event_that_waits_can_be_read_back(opened: Spool) -> None:
    largest = Batch(os.urandom(EVENT_BYTES // 2).hex().encode()[:-1] + b"\n", 1)
    segment = opened.write(largest, 64 * MIB)
    assert segment
    assert opened.read(segment) == largest


def test_of_a_torn_file_the_whole_lines_are_delivered_and_the_others_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MIB)
    lines = [line(number, padding=50) for number in range(20)]
    segment = spool.write(Batch(b"".join(lines), 20, "a"), MIB)
    assert segment
    spool.close()
    content = (tmp_path / segment.name).read_bytes()
    delivered = set[int]()
    for length in range(0, len(content), 5):
        (tmp_path / segment.name).write_bytes(content[:length])
        spool = Spool(tmp_path, MIB)
        outbox = Outbox(MIB, spool)
        arrived = drained(outbox)
        outbox.abandon()
        spool.close()
        assert arrived == list(range(len(arrived)))
        assert outbox.lost["sink_spool_damaged"] == 20 - len(arrived)
        assert files(tmp_path) == []
        delivered.add(len(arrived))
    assert {0, 20} < delivered


@pytest.mark.parametrize("position", [0, 5, 12, 100, -6, -1])
def test_a_file_with_a_wrong_byte_is_counted_and_not_sent(
    opened: Spool, tmp_path: Path, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    segment = opened.write(Batch(b"".join(line(number, 50) for number in range(20)), 20, "a"), MIB)
    assert segment
    file = tmp_path / "spool" / segment.name
    content = bytearray(file.read_bytes())
    content[position] ^= 0xFF
    file.write_bytes(content)
    whole = opened.read(segment).events
    assert whole == (20 if position == 5 else 0)  # gzip does not check the time in its header
    assert caplog.text.count("lost 0") == (whole == 0)


WRITING = """
import sys
from pathlib import Path
from kafka_probe.sinks.batch import Batch
from kafka_probe.sinks.spool import Spool
spool = Spool(Path(sys.argv[1]), 1 << 30)
for number in range(1 << 20):
    assert spool.write(Batch(b"%d %s\\n" % (number, b"x" * 5000) * 10, 10, "a"), 1 << 30)
    print(number, flush=True)
"""


def test_what_was_written_survives_sigkill(tmp_path: Path) -> None:
    output, directory = tmp_path / "output", tmp_path / "spool"
    command = [sys.executable, "-c", WRITING, str(directory)]
    writer = start(command, log=tmp_path / "log", stdout=output, env={"PYTHONPATH": str(SOURCES)})
    wait_until(lambda: output.exists() and len(output.read_bytes()) > 200, "some batches")
    writer.send_signal(signal.SIGKILL)
    writer.wait()

    written = len(output.read_text().splitlines())
    spool = Spool(directory, MIB)
    arrived = [number_of(batch) for one in spool.undelivered if (batch := spool.read(one)).events]
    spool.close()
    assert arrived == list(range(len(arrived)))
    assert written <= len(arrived) <= written + 1


def test_a_directory_that_is_removed_is_counted_and_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "deep" / "spool"
    spool = Spool(directory, MIB)
    outbox = Outbox(MIB, spool)
    outbox.put([line(0), line(1)])
    outbox.put([line(2)])
    on_disk(outbox)
    shutil.rmtree(tmp_path / "deep")
    outbox.put([line(3)])
    on_disk(outbox)
    assert len(files(directory)) == 1
    assert drained(outbox) == [3]
    assert outbox.lost["sink_spool_damaged"] == 3
    assert caplog.text.count("lost 0") == 1
    with pytest.raises(StartError):
        Spool(directory, MIB)
    outbox.abandon()
    spool.close()


def test_a_second_agent_on_the_same_directory_does_not_start(opened: Spool, tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"spool is the spool of another agent: give each agent its own --spool-dir\.$"
    ):
        Spool(tmp_path / "spool", MIB)
    opened.close()
    Spool(tmp_path / "spool", MIB).close()


def test_a_directory_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"file/spool cannot be used \(Not a directory\): name a directory"):
        Spool(tmp_path / "file" / "spool", MIB)
