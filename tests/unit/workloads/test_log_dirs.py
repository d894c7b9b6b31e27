"""Topics from a broker's log directories, found through the files that a real process holds open."""

from __future__ import annotations

import os
import tracemalloc
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from kafka_probe.workloads import Owner, StoredTopic, WorkloadResolver, log_dirs, process

Start = Callable[..., "Popen[bytes]"]
End = Callable[["Popen[bytes]"], None]
OwnerOf = Callable[..., Owner]

RESOLVER = WorkloadResolver()
LOG = "00000000000000000000.log"
HELD = "import sys; held = [open(path) for path in sys.argv[1:]]"


def topic_id() -> str:
    return uuid.uuid4().hex


def partition(log_dir: Path, name: str, topic_id: str | None, *, text: str = "version: 0\ntopic_id: {}\n") -> Path:
    """Make the directory of a partition; return its log file."""
    directory = log_dir / name
    directory.mkdir(parents=True)
    if topic_id:
        encoded = urlsafe_b64encode(bytes.fromhex(topic_id)).decode().rstrip("=")
        (directory / "partition.metadata").write_text(text.format(encoded))
    log = directory / LOG
    log.touch()
    return log


@pytest.fixture
def found(start: Start, owner_of: OwnerOf) -> Callable[..., set[StoredTopic]]:
    """Return the topics found through a process that holds files open."""

    def found(*held: Path) -> set[StoredTopic]:
        owner = owner_of(start(*map(str, held), code=HELD).pid)
        return {topic for topic in stored_by(owner) if topic}

    return found


def stored_by(owner: Owner) -> Iterator[StoredTopic | None]:
    process = RESOLVER.resolve(owner).process
    assert process
    return RESOLVER.stored_topics(*process)


Found = Callable[..., set[StoredTopic]]


def test_one_open_log_file_names_all_topics_beside_it(tmp_path: Path, found: Found) -> None:
    orders, sales = topic_id(), topic_id()
    held = partition(tmp_path, "orders-0", orders)
    partition(tmp_path, "orders-1", orders)
    partition(tmp_path, "sales-eu-12", sales)
    assert found(held) == {StoredTopic(orders, "orders", False), StoredTopic(sales, "sales-eu", False)}


def test_the_lock_of_a_log_directory_will_do(tmp_path: Path, found: Found) -> None:
    orders = topic_id()
    partition(tmp_path, "orders-0", orders)
    lock = tmp_path / ".lock"
    lock.touch()
    assert found(lock) == {StoredTopic(orders, "orders", False)}


def test_no_more_log_directories_are_read_than_a_broker_has(
    tmp_path: Path, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dirs, "_MOST_LOG_DIRS", 2)
    held = [partition(tmp_path / f"disk-{n}", "orders-0", topic_id()) for n in range(4)]
    assert len(found(*held)) == 2


def test_several_log_directories_are_all_read(tmp_path: Path, found: Found) -> None:
    ids = [topic_id() for _ in range(3)]
    held = [partition(tmp_path / f"disk-{n}", f"topic-{n}-0", each) for n, each in enumerate(ids)]
    assert found(*held) == {StoredTopic(each, f"topic-{n}", False) for n, each in enumerate(ids)}


@pytest.mark.parametrize("suffix", ["delete", "stray", "future"])
def test_a_directory_on_its_way_out_names_a_topic_that_may_be_gone(tmp_path: Path, found: Found, suffix: str) -> None:
    old, new = topic_id(), topic_id()
    partition(tmp_path, f"orders-0.{topic_id()}-{suffix}", old)
    held = partition(tmp_path, "orders-0", new)
    assert found(held) == {StoredTopic(old, "orders", True), StoredTopic(new, "orders", False)}


def test_a_name_that_kafka_has_cut_is_not_taken_for_the_topics(tmp_path: Path, found: Found) -> None:
    suffix = f"-0.{topic_id()}-delete"
    partition(tmp_path, "x" * (255 - len(suffix)) + suffix, topic_id())
    assert found(partition(tmp_path, "orders-0", None)) == set()


@pytest.mark.parametrize("text", ["", "version: 1\ntopic_id: {}\n", "version: 0\ntopic_id: short\n", "x" * 4096])
def test_what_is_not_as_kafka_writes_it_is_passed_over(tmp_path: Path, found: Found, text: str) -> None:
    sales = topic_id()
    held = partition(tmp_path, "orders-0", topic_id(), text=text)
    partition(tmp_path, "sales-0", sales)
    assert found(held) == {StoredTopic(sales, "sales", False)}


def test_links_and_pipes_in_the_place_of_the_file_are_neither_followed_nor_opened(
    tmp_path: Path, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = partition(tmp_path, "orders-0", None)
    elsewhere = partition(tmp_path / "elsewhere", "sales-0", topic_id()).with_name("partition.metadata")
    held.with_name("partition.metadata").symlink_to(elsewhere)
    pipe = partition(tmp_path, "pipe-0", None).with_name("partition.metadata")
    os.mkfifo(pipe)
    opened: list[tuple[str, int]] = []
    open_ = os.open

    def noting(path: str, flags: int, *rest: int, **options: int) -> int:
        opened.append((str(path), flags))
        return open_(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", noting)
    assert found(held) == set()
    # Only their places: to open a terminal or a device may have effects.
    flags = {path: flags for path, flags in opened if path.endswith("partition.metadata")}
    assert {path.partition("/")[0] for path in flags} == {"orders-0", "pipe-0"}
    assert all(each & os.O_PATH for each in flags.values())
    assert not [path for path, _ in opened if path.startswith("/proc/self/fd/")]


def test_of_a_directory_with_very_many_names_some_are_looked_at(
    tmp_path: Path, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, *_ = [partition(tmp_path, f"topic-{number}-0", f"{number:032x}") for number in range(5)]
    monkeypatch.setattr(log_dirs, "_MOST_ENTRIES", 3)
    assert len(found(held)) == 3


def test_of_very_many_open_files_the_first_are_looked_at(
    tmp_path: Path, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = partition(tmp_path / "first", "orders-0", topic_id())
    others = [tmp_path / f"other-{number}" for number in range(10)]
    for other in others:
        other.touch()
    sales = partition(tmp_path / "last", "sales-0", topic_id())
    monkeypatch.setattr(process, "_MOST_OPEN_FILES", 10)
    assert {topic.name for topic in found(orders, *others, sales)} == {"orders"}


@pytest.mark.parametrize("name", ["pile\N{PILE OF POO}", "caf\u00e9", "a b", "a\x1b"])
def test_a_name_that_kafka_gives_no_topic_is_none(tmp_path: Path, found: Found, name: str) -> None:
    orders = topic_id()
    partition(tmp_path, f"{name}-0", topic_id())
    assert found(partition(tmp_path, "orders-0", orders)) == {StoredTopic(orders, "orders", False)}


def test_names_of_very_many_topics_are_not_remembered(
    tmp_path: Path, start: Start, owner_of: OwnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dirs, "_MOST_NAMED", 10)
    held, *_ = [partition(tmp_path, f"{number:0240}-0", topic_id()) for number in range(1000)]
    topics = stored_by(owner_of(start(str(held), code=HELD).pid))
    tracemalloc.start()
    try:
        assert sum(1 for topic in topics if topic) == 1000
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_process_without_log_directories_has_no_topics(tmp_path: Path, found: Found) -> None:
    other = tmp_path / "orders-0.log"
    other.touch()
    assert found(other) == set()


def test_a_process_that_has_ended_has_none(tmp_path: Path, start: Start, owner_of: OwnerOf, end: End) -> None:
    process = start(str(partition(tmp_path, "orders-0", topic_id())), code=HELD)
    topics = stored_by(owner_of(process.pid))
    next(topics)
    end(process)
    assert not any(topics)


@pytest.mark.root
def test_the_path_is_the_one_that_the_process_sees(tmp_path: Path, start: Start, owner_of: OwnerOf) -> None:
    inside, orders = tmp_path / "inside", topic_id()
    log_dir = Path("/var/lib/kafka-probe-test-data")
    partition(inside, f"{log_dir}/orders-0".lstrip("/"), orders)
    # A mount namespace of its own with another root, as containers have.
    code = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def mount(*arguments):
    assert libc.mount(*arguments, None) == 0, os.strerror(ctypes.get_errno())
os.chdir({str(inside)!r})
assert libc.unshare({0x00020000}) == 0
mount(None, b"/", None, {1 << 18 | 1 << 14})
mount(b".", b".", None, {1 << 12})
os.chdir({str(inside)!r})
assert libc.syscall(155, b".", b".") == 0
held = open("{log_dir}/orders-0/{LOG}")
"""
    owner = owner_of(start(code=code).pid)
    assert {topic for topic in stored_by(owner) if topic} == {StoredTopic(orders, "orders", False)}
    assert not log_dir.exists()
