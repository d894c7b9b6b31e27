"""A cache is not used if it is damaged, or if anyone but root owns or can write it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kafka_probe.capture import compiler
from kafka_probe.capture.cache import MOST_BYTES, MOST_FILES, Cache, key_of, sealed
from kafka_probe.capture.options import Options

pytestmark = pytest.mark.root  # only root writes the cache

STRANGER = 12345
FUTURE = 1 << 33  # a time from which a clock was set back
KEY, OTHER_KEY = key_of("a"), key_of("b")
VALUE = '{"functions": {"on_tcp_sendmsg": "9500000000000000"}}'
OPTIONS = Options((9092,), watch_client=True, watch_server=True, agent_tgid=1, ring_bytes=1 << 16)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a cache with one value."""
    Cache(tmp_path / "cache").write(KEY, VALUE)
    return tmp_path / "cache"


@contextmanager
def as_stranger() -> Iterator[None]:
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """Return the directory of a cache with one value, below directories that all users can read."""
    with TemporaryDirectory(dir="/var/tmp") as above:
        Path(above).chmod(0o755)
        before = os.umask(0o077)
        try:
            Cache(Path(above) / "cache").write(KEY, VALUE)
        finally:
            os.umask(before)
        yield Path(above) / "cache"


def test_a_value_is_kept_for_the_next_start_and_only_root_can_change_it(directory: Path) -> None:
    cache = Cache(directory)
    assert cache.read(KEY) == VALUE
    assert cache.read(OTHER_KEY) is None
    assert cache.problems == []
    assert [path.stat().st_mode & 0o777 for path in (directory, directory / KEY)] == [0o755, 0o644]


def test_without_a_directory_nothing_is_kept() -> None:
    cache = Cache(None)
    cache.write(KEY, VALUE)
    assert cache.read(KEY) is None
    assert cache.problems == []


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def flip_a_bit_of_the_value(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-10] ^= 1
    file.write_bytes(content)


def flip_a_bit_of_the_checksum(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)


def add_bytes_that_are_no_text(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\xff")


def take_the_value_of_another_key(file: Path) -> None:
    file.write_bytes(sealed(OTHER_KEY, VALUE))


@pytest.mark.parametrize(
    "damage",
    [
        *(truncate, empty, flip_a_bit_of_the_value, flip_a_bit_of_the_checksum),
        *(add_bytes_that_are_no_text, take_the_value_of_another_key),
    ],
)
def test_a_damaged_file_is_not_used_and_can_be_rebuilt(directory: Path, damage: Callable[[Path], None]) -> None:
    damage(directory / KEY)
    cache = Cache(directory)
    assert cache.read(KEY) is None
    assert cache.problems == [f"The cache {directory} has a file {KEY} that is damaged."]
    cache.write(KEY, VALUE)
    assert Cache(directory).read(KEY) == VALUE


def test_a_file_that_is_longer_than_any_value_is_not_read(directory: Path) -> None:
    os.truncate(directory / KEY, MOST_BYTES + 1)
    cache = Cache(directory)
    assert cache.read(KEY) is None
    assert cache.problems == [f"The cache {directory} has a file {KEY} that is not used: File too large."]


def test_other_users_only_read_what_root_has_written(public: Path) -> None:
    with as_stranger():
        cache = Cache(public)
        assert cache.read(KEY) == VALUE
        assert cache.problems == []
        cache.write(OTHER_KEY, VALUE)
    assert os.listdir(public) == [KEY]
    assert cache.problems == [
        f"The cache {public} lacks the programs: run `kafka-probe compile` with the same settings, as root."
    ]


def test_what_others_could_write_is_not_read_by_other_users(public: Path) -> None:
    (public / KEY).chmod(0o666)
    with as_stranger():
        cache = Cache(public)
        assert cache.read(KEY) is None
    assert f"has a file {KEY} that is not used: it is not a regular file of user 0" in cache.problems[0]
    public.chmod(0o775)
    with as_stranger():
        cache = Cache(public)
        assert cache.read(KEY) is None
    assert cache.problems == [
        f"The cache {public} is not used: other users can write to it; `chmod go-w {public}` as root."
    ]


def test_another_user_neither_makes_a_directory_nor_uses_its_own(public: Path) -> None:
    absent, own = public.parent / "absent", public.parent / "own"
    own.mkdir()
    os.chown(own, STRANGER, STRANGER)
    with as_stranger():
        problems = [*Cache(absent).problems, *Cache(own).problems]
    assert [problem.partition(";")[0] for problem in problems] == [
        f"The cache {absent} is not used: No such file or directory.",
        f"The cache {own} is not used: user {STRANGER} owns it instead of user 0",
    ]


def test_a_directory_of_another_user_is_neither_used_nor_changed(directory: Path) -> None:
    for path in (directory, directory / KEY):
        os.chown(path, STRANGER, STRANGER)
    cache = Cache(directory)
    cache.write(OTHER_KEY, VALUE)
    assert cache.read(KEY) is None
    assert [problem.partition(";")[0] for problem in cache.problems] == [
        f"The cache {directory} is not used: user {STRANGER} owns it instead of user 0"
    ]
    assert os.listdir(directory) == [KEY]


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_below_one_that_others_can_write_is_not_used(directory: Path, mode: int) -> None:
    directory.parent.chmod(mode)
    cache = Cache(directory)
    assert cache.read(KEY) is None
    assert f"other users can write to {directory.parent}" in cache.problems[0]
    directory.parent.chmod(mode | 0o1000)
    assert Cache(directory).read(KEY) == VALUE


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_files_from_a_time_when_others_could_write_the_directory_are_removed(directory: Path, mode: int) -> None:
    directory.chmod(mode)
    cache = Cache(directory)
    assert cache.read(KEY) is None
    assert os.listdir(directory) == []
    assert directory.stat().st_mode & 0o777 == 0o755
    cache.write(KEY, VALUE)
    assert Cache(directory).read(KEY) == VALUE


def fifo(file: Path) -> None:
    os.mkfifo(file)


def link(file: Path) -> None:
    file.symlink_to(file.parent.parent / "elsewhere")


def second_name(file: Path) -> None:
    file.hardlink_to(file.parent.parent / "elsewhere")


def file_of_a_stranger(file: Path) -> None:
    file.write_bytes(sealed(KEY, VALUE))
    os.chown(file, STRANGER, STRANGER)


def file_that_others_can_write(file: Path) -> None:
    file.write_bytes(sealed(KEY, VALUE))
    file.chmod(0o666)


PLANTED = [fifo, link, second_name, file_that_others_can_write, file_of_a_stranger]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_directory_with_anything_but_own_plain_files_is_not_used(
    directory: Path, plant: Callable[[Path], None]
) -> None:
    (directory.parent / "elsewhere").write_bytes(sealed(OTHER_KEY, VALUE))
    plant(directory / OTHER_KEY)
    cache = Cache(directory)
    assert [cache.read(KEY), cache.read(OTHER_KEY)] == [None, None]
    assert f"it contains '{OTHER_KEY}', which the agent did not put there" in cache.problems[0]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_file_is_examined_again_when_it_is_read(directory: Path, plant: Callable[[Path], None]) -> None:
    (directory.parent / "elsewhere").write_bytes(sealed(KEY, VALUE))
    cache = Cache(directory)
    (directory / KEY).unlink()
    plant(directory / KEY)
    assert cache.read(KEY) is None
    assert f"has a file {KEY} that is not used" in cache.problems[0]
    cache.write(KEY, VALUE)
    assert Cache(directory).read(KEY) == VALUE


def test_a_directory_of_other_files_is_not_used_and_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    cache = Cache(tmp_path)
    cache.write(KEY, VALUE)
    assert "it contains 'notes'" in cache.problems[0]
    assert os.listdir(tmp_path) == ["notes"]


def test_the_newest_files_are_kept_whatever_a_crash_left(directory: Path) -> None:
    (directory / f"{KEY}.0123456789abcdef").touch()
    cache = Cache(directory)
    keys = [key_of(number) for number in range(MOST_FILES + 2)]
    for number, key in enumerate(keys):
        cache.write(key, VALUE)
        os.utime(directory / key, (FUTURE + number, FUTURE + number))
    assert cache.problems == []
    assert sorted(os.listdir(directory)) == sorted(keys[2:])


def test_agents_that_write_at_once_leave_one_whole_file_each(directory: Path) -> None:
    caches = [Cache(directory) for _ in range(8)]
    keys = [key_of(number) for number in range(3)]
    values = {key: f"{key} " * 1000 for key in keys}

    def write_and_read(cache: Cache) -> set[str | None]:
        read = set()
        for key in keys * 20:
            cache.write(key, values[key])
            read.add(cache.read(key))
        return read

    with ThreadPoolExecutor(len(caches)) as pool:
        seen = set().union(*pool.map(write_and_read, caches))
    assert seen == set(values.values())
    assert sorted(os.listdir(directory)) == sorted((KEY, *keys))
    assert [cache.problems for cache in caches] == [[]] * len(caches)


def test_a_file_that_another_agent_replaces_while_it_is_read_is_whole(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open

    def open_then_remove(name: str, flags: int, *, dir_fd: int) -> int:
        opened = open_file(name, flags, dir_fd=dir_fd)
        os.unlink(name, dir_fd=dir_fd)
        return opened

    cache = Cache(directory)
    monkeypatch.setattr(os, "open", open_then_remove)
    assert cache.read(KEY) == VALUE


def test_a_file_that_another_agent_removes_while_the_directory_is_examined_is_no_problem(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_files = os.listdir
    monkeypatch.setattr(os, "listdir", lambda opened: [*list_files(opened), f"{KEY}.0123456789abcdef"])
    cache = Cache(directory)
    cache.write(OTHER_KEY, VALUE)
    assert [cache.read(KEY), cache.read(OTHER_KEY)] == [VALUE, VALUE]
    assert cache.problems == []


def test_a_full_disk_leaves_the_old_value_and_no_part_of_the_new(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    cache = Cache(directory)
    assert not cache.write(KEY, "new")
    assert cache.problems == [f"The cache {directory} cannot be written: No space left on device."]
    assert os.listdir(directory) == [KEY]
    assert cache.read(KEY) == VALUE


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/proc/kafka-probe/cache", "No such file or directory"),
        ("loop", "Too many levels of symbolic links"),
        ("a\0b", "embedded null byte"),
    ],
    ids=ascii,
)
def test_a_directory_that_cannot_be_made_is_a_problem_and_no_failure(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    directory = tmp_path / name
    cache = Cache(directory)
    cache.write(KEY, VALUE)
    assert cache.read(KEY) is None
    assert cache.problems == [f"The cache {directory} is not used: {reason}."]


def test_another_setting_has_other_programs_but_not_another_start() -> None:
    others = [
        *(replace(OPTIONS, ports=(9093,)), replace(OPTIONS, ports=())),
        *(replace(OPTIONS, watch_client=False), replace(OPTIONS, watch_server=False)),
        *(replace(OPTIONS, ring_bytes=1 << 17), replace(OPTIONS, max_connections=7)),
        *(replace(OPTIONS, cgroup_subsystem="pids"), replace(OPTIONS, perf_buffers={0: 3})),
    ]
    keys = {key_of(options.compiled_in()) for options in (OPTIONS, *others)}
    assert len(keys) == 1 + len(others)
    with_perf = [replace(OPTIONS, agent_tgid=tgid, netns=tgid, perf_buffers={0: tgid}) for tgid in (7, 8)]
    assert with_perf[0].compiled_in() == with_perf[1].compiled_in()


def test_another_kernel_or_source_has_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "bpf"
    shutil.copytree(compiler.sources(), copied)
    monkeypatch.setattr(compiler, "sources", lambda: copied)
    before = compiler.origin(b"kernel")
    assert compiler.origin(b"kernel") == before
    assert compiler.origin(b"another kernel") != before
    for changed in ("sock.h", "include/linux/types.h", "kprobe.c"):
        content = (copied / changed).read_text()
        (copied / changed).write_text(content + "\n")
        assert compiler.origin(b"kernel") != before
        (copied / changed).write_text(content)
    assert compiler.origin(b"kernel") == before
