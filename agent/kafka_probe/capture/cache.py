"""The cache of compiled programs: a directory of files that only root can write, and all users can read.

Its contents are loaded into the kernel. So nothing is read that another user owns, could have written or could have
replaced, and a file counts only with its checksum. An agent that runs as another user reads what `kafka-probe compile`
has written as root. Every reason not to use the directory or a file is a line in `problems`; the programs are then
compiled as without a cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

from kafka_probe.private_directory import OTHERS_WRITE, NotPrivateError, make_private, open_directory, read_file

ROOT = 0
MOST_FILES = 16  # the newest; those of earlier kernels, versions and settings are removed
MOST_BYTES = 4 << 20  # of a file; the programs of one backend take 300 KB
# A key, or a key and the suffix of a file that is being written.
_NAME = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{16})?")


class Cache:
    """Values by key, see `key_of`, in `directory`, which root creates if it is absent; None: no cache."""

    def __init__(self, directory: Path | None) -> None:
        self.problems: list[str] = []
        self._directory = directory
        self._opened: int | None = None
        if directory:
            try:
                self._opened = _open(directory)
            except (OSError, ValueError) as error:  # ValueError: a path with a NUL
                self._note("is not used", error)

    def read(self, key: str) -> str | None:
        """Return the value; None if it is absent, damaged or not to be trusted."""
        if self._opened is None:
            return None
        try:
            content = read_file(self._opened, key, ROOT, MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note(f"has a file {key} that is not used", error)
            return None
        value = content.partition(b"\n")[2].decode(errors="replace")
        if content == sealed(key, value):
            return value
        self._note(f"has a file {key} that is damaged")
        return None

    def write(self, key: str, value: str) -> bool:
        """Add or replace a value, and remove the oldest files beyond MOST_FILES. Return False if that failed."""
        if self._opened is None:
            return False
        if os.geteuid() != ROOT:
            self._note("lacks the programs: run `kafka-probe compile` with the same settings, as root")
            return False
        unfinished = f"{key}.{os.urandom(8).hex()}"
        try:
            with open(unfinished, "xb", opener=self._at) as file:
                file.write(sealed(key, value))
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            os.rename(unfinished, key, src_dir_fd=self._opened, dst_dir_fd=self._opened)
            self._remove_oldest_beside(key)
        except OSError as error:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=self._opened)
            self._note("cannot be written", error)
            return False
        return True

    def _remove_oldest_beside(self, key: str) -> None:
        with suppress(FileNotFoundError):  # another agent removes files at the same time
            others = set(_files(self._opened)) - {key}
            times = {name: os.stat(name, dir_fd=self._opened).st_mtime_ns for name in others}
            for name in sorted(others, key=times.__getitem__)[: -MOST_FILES + 1]:
                os.unlink(name, dir_fd=self._opened)

    def _at(self, name: str, flags: int) -> int:
        return os.open(name, flags, mode=0o600, dir_fd=self._opened)

    def _note(self, what: str, error: OSError | ValueError | None = None) -> None:
        remedy = f"; {error.remedy}" if isinstance(error, NotPrivateError) else ""
        reason = f": {getattr(error, 'strerror', error)}{remedy}" if error else ""
        self.problems.append(f"The cache {self._directory} {what}{reason}.")


def key_of(*parts: object) -> str:
    """Return a key that stands for these parts, which JSON can represent."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def sealed(key: str, value: str) -> bytes:
    """Return the contents of the file of a key: a line with their checksum, then the value."""
    return hashlib.sha256(f"{key}\n{value}".encode()).hexdigest().encode() + b"\n" + value.encode()


def _open(directory: Path) -> int:
    """Open the directory. As root, remove files from a time when others could write it."""
    opened = open_directory(directory, ROOT)
    try:
        was_shared = os.fstat(opened).st_mode & OTHERS_WRITE
        if os.geteuid() == ROOT:
            make_private(opened, 0o755, lambda name: _NAME.fullmatch(name) is not None)
            for name in _files(opened) if was_shared else ():
                os.unlink(name, dir_fd=opened)
        elif was_shared:
            raise NotPrivateError("other users can write to it", f"`chmod go-w {directory}` as root")
    except OSError:
        os.close(opened)
        raise
    return opened


def _files(opened: int | None) -> list[str]:
    return [name for name in os.listdir(opened) if _NAME.fullmatch(name)]
