"""Topics in a broker's own files: `partition.metadata` in the directory of each partition (KIP-516).

A broker keeps the lock of each log directory and its log files open as long as it runs, also those of idle partitions:
their paths contain the log directories. The files are untrusted input: this module reads few bytes of each, never
follows a link and never blocks.
"""

from __future__ import annotations

import os
import re
import stat
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from kafka_probe.workloads.process import LiveProcess

_HELD_OPEN = re.compile(r"(?P<log_dir>.*)/(?:\.lock|[^/]+-\d+/\d{20}\.log)")
# org.apache.kafka.storage.internals.log.UnifiedLog: a partition that will be deleted, has no topic any more, or moves
# to another directory has its files in `topic-0.<uuid>-delete`, `-stray` or `-future`.
# org.apache.kafka.common.internals.Topic defines the valid names of topics.
_PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-[0-9]+(?P<suffix>\.[0-9a-f]{32}-(?:delete|stray|future))?")
_METADATA = re.compile(rb"version: 0\ntopic_id: (?P<id>[A-Za-z0-9_-]{22})\n?")
_METADATA_MAX_BYTES = 128
# Limits above those of any broker, because the files may be those of any program.
_MOST_LOG_DIRS, _MOST_ENTRIES = 64, 100_000
# Most topics of a directory that are kept as known: of further topics, the file of every partition is read.
_MOST_NAMED = 4096
# Kafka shortens the topic in names with a suffix that would be longer.
_NAME_MAX = 255


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic and its id, 32 hexadecimal digits.

    gone: its directory has the suffix `-delete`, `-stray` or `-future`, so the topic may not exist any more.
    """

    topic_id: str
    name: str
    gone: bool


def stored_topics(live: LiveProcess) -> Iterator[StoredTopic | None]:
    """Yield the topics in the log directories of a process, and None for each file and name without one.

    The caller may pause at each None: a busy broker has a hundred thousand of them. A process that has ended yields
    nothing.

    Raises:
        PermissionError: the agent may not read its open files or its directories.
    """
    log_dirs = set[str]()
    for path in live.open_files():
        if len(log_dirs) < _MOST_LOG_DIRS and (found := _HELD_OPEN.fullmatch(path)):
            log_dirs.add(found["log_dir"])
        yield None
    for log_dir in sorted(log_dirs):
        yield from _topics_in(log_dir, live)


def _topics_in(log_dir: str, live: LiveProcess) -> Iterator[StoredTopic | None]:
    directory = live.open(log_dir, os.O_DIRECTORY)
    if directory is None:
        return
    named = set[str]()
    try:
        for name in _names_in(directory):
            partition = _PARTITION.fullmatch(name)
            if partition is None or len(name) >= _NAME_MAX:
                yield None
                continue
            # All partitions of a topic have the same id: one file is enough.
            topic, gone = partition["topic"], bool(partition["suffix"])
            topic_id = None if topic in named and not gone else _topic_id(directory, f"{name}/partition.metadata")
            if topic_id and not gone and len(named) < _MOST_NAMED:
                named.add(topic)
            yield StoredTopic(topic_id, topic, gone) if topic_id else None
    finally:
        os.close(directory)


def _names_in(directory: int) -> Iterator[str]:
    """Yield at most _MOST_ENTRIES names in a directory, without reading all of them first."""
    with os.scandir(directory) as entries:
        yield from (entry.name for entry in islice(entries, _MOST_ENTRIES))


def _topic_id(directory: int, path: str) -> str | None:
    """Return the topic id in a file; None without a valid file, as in Kafka before 2.8.

    The process may have mounted a device or a terminal there: nothing but a regular file is opened.
    """
    try:
        with _opened(path, os.O_PATH | os.O_NOFOLLOW, directory) as held:
            if not stat.S_ISREG(os.fstat(held).st_mode):
                return None
            with _opened(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as file:
                found = _METADATA.fullmatch(os.read(file, _METADATA_MAX_BYTES))
    except PermissionError:
        raise
    except OSError:
        return None
    return urlsafe_b64decode(found["id"] + b"==").hex() if found else None


@contextmanager
def _opened(path: str, flags: int, directory: int | None = None) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield file
    finally:
        os.close(file)
