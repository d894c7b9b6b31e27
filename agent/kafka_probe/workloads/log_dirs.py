"""Topics that a broker's own files name: `partition.metadata` in the directory of each partition (KIP-516).

A broker holds the lock of each of its log directories and its log files open for as long as it runs, also those of idle
partitions: their paths say where the directories are. What is found there is read as any stranger's files: short, never
through a link, never waiting.
"""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from kafka_probe.workloads.process import LiveProcess

_HELD_OPEN = re.compile(r"(?P<log_dir>.*)/(?:\.lock|[^/]+-\d+/\d{20}\.log)")
# org.apache.kafka.storage.internals.log.UnifiedLog: a partition that is to be deleted, has no topic any more, or is on
# its way to another directory keeps its files under `topic-0.<uuid>-delete`, `-stray` or `-future`.
# A topic's name is as org.apache.kafka.common.internals.Topic allows.
_PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-[0-9]+(?P<suffix>\.[0-9a-f]{32}-(?:delete|stray|future))?")
_METADATA = re.compile(rb"version: 0\ntopic_id: (?P<id>[A-Za-z0-9_-]{22})\n?")
_METADATA_MAX_BYTES = 128
# Whose files these are may be anybody: more than a broker has.
_MOST_LOG_DIRS, _MOST_ENTRIES = 64, 100_000
# Topics of a directory that are remembered as named: of those beyond, every partition's file is read.
_MOST_NAMED = 4096
# Kafka cuts the topic out of a longer name with a suffix.
_NAME_MAX = 255


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic by its id, 32 hexadecimal digits. `gone`: its files are about to be removed."""

    topic_id: str
    name: str
    gone: bool


def stored_topics(live: LiveProcess) -> Iterator[StoredTopic | None]:
    """The topics in the log directories of a process, None for each file and name that says nothing: a busy broker has
    a hundred thousand of them, and whoever asks may rest in between. Nothing when the process ends.

    Raises:
        PermissionError: its open files, or its directories, may not be looked at.
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
            # The partitions of a topic agree, so one of them will do.
            topic, gone = partition["topic"], bool(partition["suffix"])
            topic_id = None if topic in named and not gone else _topic_id(directory, f"{name}/partition.metadata")
            if topic_id and not gone and len(named) < _MOST_NAMED:
                named.add(topic)
            yield StoredTopic(topic_id, topic, gone) if topic_id else None
    finally:
        os.close(directory)


def _names_in(directory: int) -> Iterator[str]:
    """As many as are looked at, without reading all of them first."""
    with os.scandir(directory) as entries:
        yield from (entry.name for entry in islice(entries, _MOST_ENTRIES))


def _topic_id(directory: int, path: str) -> str | None:
    """None where there is no such file (as in Kafka before 2.8), or another one than Kafka writes."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except PermissionError:
        raise
    except OSError:
        return None
    try:
        found = _METADATA.fullmatch(os.read(file, _METADATA_MAX_BYTES))
    except OSError:
        return None
    finally:
        os.close(file)
    return urlsafe_b64decode(found["id"] + b"==").hex() if found else None
