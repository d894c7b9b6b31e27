"""A spool directory that other users can write is refused at the start, and harmless if it becomes one later."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_probe.errors import StartError
from kafka_probe.memory import IN_TRANSIT_BYTES
from kafka_probe.sinks import spool as spool_module
from kafka_probe.sinks.batch import Batch
from kafka_probe.sinks.outbox import Outbox
from kafka_probe.sinks.spool import MAX_BATCH_BYTES, MAX_EVENTS, Segment, Spool

MIB = 1 << 20
STRANGER = 12345
NAME = "0000000000000000-1-a.ndjson.gz"


def refusal(directory: Path) -> str:
    with pytest.raises(StartError) as refused:
        Spool(directory, MIB)
    return str(refused.value)


def mode_of(file: Path) -> int:
    return file.stat().st_mode & 0o7777


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2775, 0o755])
def test_a_directory_that_others_can_write_becomes_the_agents_alone(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "spool"
    directory.mkdir()
    directory.chmod(mode)
    Spool(directory, MIB).close()
    assert mode_of(directory) == 0o700


def test_a_directory_is_made_so_that_others_can_write_neither_it_nor_those_above(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Spool(tmp_path / "a" / "b" / "spool", MIB).close()
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / made) for made in ("a", "a/b", "a/b/spool")] == [0o755, 0o755, 0o700]


@pytest.mark.root
def test_a_directory_of_another_user_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    directory.mkdir(mode=0o755)
    os.chown(directory, STRANGER, STRANGER)
    assert refusal(directory) == (
        f"The spool {directory} cannot be used (user {STRANGER} owns it instead of user 0): "
        f"`chown -R 0 {directory}` if nobody else uses it, or name another directory."
    )
    assert mode_of(directory) == 0o755


@pytest.mark.parametrize("mode", [0o777, 0o775])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_directory_below_one_that_others_can_write_is_refused(tmp_path: Path, mode: int, depth: int) -> None:
    directory = tmp_path / "a" / "b" / "spool"
    directory.mkdir(parents=True)
    above = directory.parents[depth - 1]
    above.chmod(mode)
    assert f"(other users can write to {above}): `chmod go-w {above}`, or name another directory." in refusal(directory)
    above.chmod(mode | 0o1000)
    Spool(directory, MIB).close()


@pytest.mark.root
def test_a_directory_below_that_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home" / "spool").mkdir(parents=True)
    os.chown(tmp_path / "home", STRANGER, STRANGER)
    assert f"(user {STRANGER} owns {tmp_path}/home and can replace its contents)" in refusal(
        tmp_path / "home" / "spool"
    )


@pytest.mark.root
def test_a_link_is_followed_only_if_nobody_else_can_exchange_it(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    link = tmp_path / "shared" / "spool"
    link.symlink_to(tmp_path / "target")
    Spool(link, MIB).close()
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert f"user {STRANGER} owns {link}" in refusal(link)
    (tmp_path / "target").chmod(0o777)
    (tmp_path / "outer").symlink_to(tmp_path / "target")
    assert f"other users can write to {tmp_path}/target" in refusal(tmp_path / "outer" / "spool")


@pytest.mark.root
def test_every_link_on_the_way_is_one_that_nobody_else_can_exchange(tmp_path: Path) -> None:
    for name in ("target", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "theirs" / "hop").symlink_to(tmp_path / "target")
    (tmp_path / "link").symlink_to("theirs/hop")
    Spool(tmp_path / "link", MIB).close()
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    assert f"user {STRANGER} owns {tmp_path}/theirs" in refusal(tmp_path / "link")
    assert f"user {STRANGER} owns {tmp_path}/theirs" in refusal(tmp_path / "link" / "spool")


@pytest.mark.root
def test_nothing_is_made_where_a_link_of_another_user_leads(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert f"user {STRANGER} owns {link}" in refusal(link / "kafka-probe" / "spool")
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def fifo(file: Path) -> None:
    os.mkfifo(file)


def link_to_a_secret(file: Path) -> None:
    secret = file.parent.parent / "secret"
    secret.write_bytes(gzip.compress(b"secret\n"))
    secret.chmod(0o600)
    file.symlink_to(secret)


def second_name_of_a_secret(file: Path) -> None:
    secret = file.parent.parent / "secret"
    secret.write_bytes(gzip.compress(b"secret\n"))
    file.hardlink_to(secret)


def file_of_a_stranger(file: Path) -> None:
    file.write_bytes(gzip.compress(b"{}\n"))
    os.chown(file, STRANGER, STRANGER)


def file_that_others_can_write(file: Path) -> None:
    file.write_bytes(gzip.compress(b"{}\n"))
    file.chmod(0o622)


PLANTED = [
    *(fifo, link_to_a_secret, second_name_of_a_secret, file_of_a_stranger, file_that_others_can_write),
    Path.mkdir,
]


@pytest.mark.root
@pytest.mark.parametrize("plant", PLANTED)
def test_what_others_planted_before_the_start_is_refused_and_named(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    directory = tmp_path / "spool"
    directory.mkdir()
    directory.chmod(0o777)
    plant(directory / NAME)
    assert refusal(directory) == (
        f"The spool {directory} cannot be used (it contains '{NAME}', which the agent did not put there): "
        "move it away if it is not the agent's, or name an empty directory."
    )
    assert mode_of(directory) == 0o777  # it may be /tmp
    assert os.listdir(directory) == [NAME]


@pytest.mark.root
@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_planted_later_is_neither_waited_for_nor_sent(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    spool = Spool(tmp_path / "spool", MIB)
    outbox = Outbox(MIB, spool)
    segment = spool.write(Batch(b"{}\n", 1, "a"), MIB)
    assert segment
    file = tmp_path / "spool" / segment.name
    file.unlink()
    plant(file)
    assert spool.read(segment) == Batch(b"", 0, "a")
    outbox.abandon()
    spool.close()


@pytest.mark.parametrize(
    "name",
    [
        "README",
        "0000000000000000-0-a.ndjson.gz",
        f"0000000000000000-{MAX_EVENTS + 1}-a.ndjson.gz",
        f"0000000000000000-{1 << 64}-a.ndjson.gz",
        "\N{ARABIC-INDIC DIGIT ONE}" * 16 + "-1-a.ndjson.gz",
        "0000000000000000-1-é.ndjson.gz",
        "\x1b[31m",
    ],
)
def test_a_name_that_no_spool_gives_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"{}\n"))
    assert f"it contains {name!r}," in refusal(tmp_path)


@pytest.mark.root
def test_the_top_of_a_file_system_can_be_a_spool(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    Spool(tmp_path, MIB).close()


def written(directory: Path, content: bytes, events: int) -> tuple[Spool, Segment]:
    name = f"0000000000000000-{events}-a.ndjson.gz"
    directory.mkdir()
    (directory / name).write_bytes(content)
    spool = Spool(directory, MIB)
    return spool, Segment(name, events, "a", 4096)


@pytest.mark.parametrize("lines", [0, 1, 3, 1000])
def test_a_count_that_is_not_that_of_the_lines_makes_no_counter_negative(tmp_path: Path, lines: int) -> None:
    spool, _ = written(tmp_path / "spool", gzip.compress(b"{}\n" * lines), events=2)
    outbox = Outbox(MIB, spool)
    outbox.close()
    while batch := outbox.head():
        outbox.finish(batch)
    delivered = lines if lines <= 2 else 0
    assert outbox.events_delivered == delivered
    assert outbox.lost["sink_spool_damaged"] == 2 - delivered
    outbox.abandon()
    spool.close()


BOMB = """
import resource, sys
from pathlib import Path
from kafka_probe.sinks.spool import Segment, Spool
spool = Spool(Path(sys.argv[1]), 1 << 30)
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
batch = spool.read(spool.undelivered[0])
print(batch.events, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib)
"""


def test_a_bomb_takes_no_more_memory_than_there_is_for_events_in_transit(tmp_path: Path) -> None:
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(b"\n" * MIB) for _ in range(512)) + packer.flush()
    spool, _ = written(tmp_path / "spool", packed, events=MAX_EVENTS)
    spool.close()
    sources = str(Path(spool_module.__file__).parents[2])
    command = [sys.executable, "-c", BOMB, str(tmp_path / "spool")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": sources}, capture_output=True, text=True, check=True
    )
    events, grown_kib = map(int, re.findall(r"\d+", done.stdout))
    assert events == 0
    assert grown_kib << 10 < 3 * MAX_BATCH_BYTES < IN_TRANSIT_BYTES


def test_a_file_that_is_longer_than_any_batch_is_not_read(tmp_path: Path) -> None:
    spool, segment = written(tmp_path / "spool", gzip.compress(b"{}\n"), events=1)
    os.truncate(tmp_path / "spool" / segment.name, MAX_BATCH_BYTES + 1)
    assert spool.read(segment).events == 0
    os.truncate(tmp_path / "spool" / segment.name, MAX_BATCH_BYTES)
    assert spool.read(segment).events == 1
    spool.close()


def test_a_directory_that_becomes_unsafe_while_the_agent_runs_is_not_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path / "a" / "spool", MIB)
    (tmp_path / "a" / "spool").rmdir()
    (tmp_path / "a").chmod(0o777)
    assert spool.write(Batch(b"{}\n", 1, "a"), MIB) is None
    assert f"cannot be written (other users can write to {tmp_path}/a)" in caplog.text
    spool.close()
