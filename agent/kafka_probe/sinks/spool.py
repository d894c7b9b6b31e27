"""Batches on disk, one gzip file each, for long outages of a sink and across restarts of the agent.

A file name contains the position in the queue, the number of events and the record key; `zcat` shows the file. A batch
survives a crash once `write` has returned it; a truncated file yields its complete lines. The directory belongs to one
agent at a time and to no other user: files that others could have created in it are neither trusted nor followed. After
the start nothing here raises: the caller keeps batches that the disk refuses, and a failure is logged once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import zlib
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_probe.errors import StartError
from kafka_probe.private_directory import NotPrivateError, make_private, open_directory, read_file
from kafka_probe.sinks.batch import BATCH_BYTES, EVENT_BYTES, Batch

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

# Disk space of a small file: the bound is on disk space, not on file sizes.
BLOCK_BYTES = 4096
_GZIP = 31  # zlib's wbits for gzip's header and checksum
_LEVEL = 1  # compresses to a tenth or less; level 6 saves a third of that and takes three times as long
_NAME = re.compile(r"(\d{16})-(\d{1,6})-([\w.-]*)\.ndjson\.gz", re.ASCII)
# Bound of a file, compressed and not: several events are shorter, and gzip does not lengthen JSON of that size.
MAX_BATCH_BYTES = EVENT_BYTES
# A batch of several events is at most BATCH_BYTES long, and the shortest event is `{}` with its newline.
MAX_EVENTS = BATCH_BYTES // 3


@dataclass(frozen=True, slots=True)
class Segment:
    """A batch on disk: its file name, the number of events written, their record key, and the disk space."""

    name: str
    events: int
    key: str
    size_bytes: int


class Spool:
    """The files of `directory`, which is created if absent. `undelivered` contains those of earlier runs.

    Raises `StartError` if the directory cannot be used, or another agent uses it.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.failures = 0
        self._directory = directory
        self._warned: set[str] = set()
        self._number = 0
        self._opened = -1
        try:
            self.undelivered = deque(self._open())
        except BlockingIOError:
            raise StartError(
                f"{directory} is the spool of another agent: give each agent its own --spool-dir."
            ) from None
        except OSError as error:
            remedy = error.remedy if isinstance(error, NotPrivateError) else "name a directory that the agent may write"
            raise StartError(f"The spool {directory} cannot be used ({error.strerror}): {remedy}.") from None
        if self.undelivered:
            log.info("Sending %d events from %s first.", sum(one.events for one in self.undelivered), directory)

    def write(self, batch: Batch, free_bytes: int) -> Segment | None:
        """Write a batch durably to disk. Return None if it takes more than `free_bytes` or the disk refuses it."""
        content = zlib.compress(batch.lines, _LEVEL, _GZIP)
        size_bytes = _space(len(content))
        if size_bytes > free_bytes:
            return None
        try:
            if not self._is_at_path():
                self._open()
            name = f"{self._number:016d}-{batch.events}-{batch.key}.ndjson.gz"
            self._number += 1
            self._create(name, content)
        except OSError as error:
            self.failures += 1
            consequence = "events wait in memory; those beyond --sink-buffer-bytes are lost and counted"
            self._warn("written", f"cannot be written ({error.strerror}): {consequence}")
            return None
        self._works("written")
        return Segment(name, batch.events, batch.key, size_bytes)

    def read(self, segment: Segment) -> Batch:
        """Return the batch without the events that a damaged file lacks; without any event if the file is gone."""
        try:
            lines = _whole_lines(read_file(self._opened, segment.name, os.geteuid(), MAX_BATCH_BYTES))
        except OSError:
            lines = b""
        events = lines.count(b"\n")
        if events > segment.events:  # more than were written: the file was changed
            lines, events = b"", 0
        if events < segment.events:
            self._warn("read", f"lost {segment.name} or a part of it; the lost events are counted")
        else:
            self._works("read")
        return Batch(lines, events, segment.key)

    def remove(self, segment: Segment) -> None:
        """Delete the file of a segment. If that fails, the next run sends its events again."""
        with suppress(OSError):
            os.unlink(segment.name, dir_fd=self._opened)

    def close(self) -> None:
        """Release the lock of the directory. Idempotent."""
        opened, self._opened = self._opened, -1
        with suppress(OSError):
            os.close(opened)

    def _open(self) -> list[Segment]:
        """Open, lock and check the directory, and return its segments, oldest first."""
        opened = open_directory(self._directory, os.geteuid())
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            make_private(opened, 0o700, lambda name: _segment_name(name) is not None)
            found = [name for entry in sorted(os.listdir(opened)) if (name := _segment_name(entry))]
            sizes = [os.stat(name[0], dir_fd=opened).st_size for name in found]
        except OSError:
            os.close(opened)
            raise
        self.close()
        self._opened = opened
        if found:
            self._number = max(self._number, int(found[-1][1]) + 1)
        return [Segment(name[0], int(name[2]), name[3], _space(size)) for name, size in zip(found, sizes, strict=True)]

    def _is_at_path(self) -> bool:
        """Return True if the open directory is still the one at its path."""
        try:
            return os.path.samestat(os.stat(self._directory), os.fstat(self._opened))
        except FileNotFoundError:
            return False

    def _create(self, name: str, content: bytes) -> None:
        with open(name, "xb", opener=self._at) as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.fsync(self._opened)
                with suppress(OSError):  # its page cache would count as the agent's memory
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError:
                os.unlink(name, dir_fd=self._opened)
                raise

    def _at(self, name: str, flags: int) -> int:
        return os.open(name, flags, mode=0o600, dir_fd=self._opened)

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("The spool %s %s.", self._directory, what)

    def _works(self, kind: str) -> None:
        if kind in self._warned:
            self._warned.remove(kind)
            log.info("The spool %s can be %s again.", self._directory, kind)


def _space(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _segment_name(name: str) -> re.Match[str] | None:
    """Return a match with number, events and key if `write` could have given the name, else None."""
    found = _NAME.fullmatch(name)
    return found if found and 0 < int(found[2]) <= MAX_EVENTS else None


def _whole_lines(content: bytes) -> bytes:
    """Return the complete lines of gzip content; none if it is damaged or decompresses to more than a batch."""
    unpacked = zlib.decompressobj(_GZIP)
    try:
        lines = unpacked.decompress(content, MAX_BATCH_BYTES)
    except zlib.error:
        return b""
    if unpacked.eof:
        return lines
    return b"" if unpacked.unconsumed_tail else lines[: lines.rfind(b"\n") + 1]
