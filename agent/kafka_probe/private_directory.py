"""A directory that no other user can write: creates, checks and opens it and its files.

Owner and mode of the directory and of everything above it are checked before anything is opened, so that no other user
can replace a part of the path afterwards. Files are opened relative to the open directory, never through a symbolic
link, and never with a call that blocks, such as an open of a FIFO without a writer.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MOST_LINKS = 40  # as in the kernel: MAXSYMLINKS of include/linux/namei.h


class NotPrivateError(OSError):
    """Raised if other users can or could write the directory. `strerror` is the reason, `remedy` the next step."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(errno.EPERM, reason)
        self.remedy = remedy


def open_directory(directory: Path) -> int:
    """Open a directory that only this user and root can replace. Create it and its parents if they are absent.

    Raises `NotPrivateError` if another user could replace it, and `OSError` if it cannot be created or opened.
    """
    directory = directory.absolute()
    missing = [one for one in directory.parents if not one.exists()]
    # Check before creating anything: a link of another user may point anywhere.
    _require_own_path((missing or [directory])[-1])
    for one in reversed(missing):
        one.mkdir(0o755, exist_ok=True)
    directory.mkdir(0o700, exist_ok=True)
    target, me = _require_own_path(directory), os.geteuid()
    # Open the path that was checked: a link to it may point elsewhere by now.
    opened = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if (owner := os.fstat(opened).st_uid) != me:
        os.close(opened)
        reason = f"user {owner} owns it, but the agent runs as user {me}"
        raise NotPrivateError(reason, f"`chown -R {me} {directory}` if nobody else uses it, or name another directory")
    return opened


def _require_own_path(directory: Path) -> Path:
    """Return the path of a directory without links; the directory itself may be absent.

    Raises `NotPrivateError` if another user could replace the directory, and `OSError` if it has too many links.
    """
    target, above = _followed(directory)
    for one in above:
        found = one.lstat()
        if found.st_uid not in (0, os.geteuid()):
            reason = f"user {found.st_uid} owns {one} and can replace its contents"
            raise NotPrivateError(reason, "name a directory whose parents belong to root or to the agent's user")
        if stat.S_ISDIR(found.st_mode) and found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise NotPrivateError(f"other users can write to {one}", f"`chmod go-w {one}`, or name another directory")
    return target


def _followed(directory: Path) -> tuple[Path, list[Path]]:
    """Follow the links of an absolute path; return where it leads, and all links and directories on the way there."""
    here, names, passed, links = Path("/"), [*reversed(directory.parts[1:])], list[Path](), 0
    while names:
        name = names.pop()
        passed.append(here)
        if name == "..":
            here = here.parent
        elif not (step := here / name).is_symlink():
            here = step
        elif (links := links + 1) > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        else:
            passed.append(step)
            followed = Path(os.readlink(step))
            names += reversed(followed.parts[1:] if followed.is_absolute() else followed.parts)
            here = Path("/") if followed.is_absolute() else here
    return here, passed


def make_private(opened: int, expected: Callable[[str], bool]) -> None:
    """Restrict an open directory of this user to this user. It must contain only own files with expected names.

    The contents are checked before the mode changes, because the change would damage a shared directory such as /tmp,
    and again afterwards, because others may have written until then. Raises `NotPrivateError` if it contains anything
    else.
    """
    _require_own_files(opened, expected)
    if os.fstat(opened).st_mode & _OTHERS:
        os.fchmod(opened, 0o700)
        _require_own_files(opened, expected)


def _require_own_files(opened: int, expected: Callable[[str], bool]) -> None:
    for name in os.listdir(opened):
        try:
            found = os.stat(name, dir_fd=opened, follow_symlinks=False)
        except FileNotFoundError:  # another agent of this user has removed or renamed it
            continue
        # The root directory of an ext4 file system contains one.
        if name == "lost+found" and stat.S_ISDIR(found.st_mode) and found.st_uid == 0:
            continue
        if not expected(name) or not _is_own_file(found):
            remedy = "move it away if it is not the agent's, or name an empty directory"
            raise NotPrivateError(f"it contains {name!r}, which the agent did not put there", remedy)


def _is_own_file(found: os.stat_result) -> bool:
    # Another user may have made the second link, to a file that this user may read and they may not. A user who could
    # write the file may still have it open after the directory has become private.
    own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink < 2  # 0: replaced
    return own and not found.st_mode & _OTHERS_WRITE


def read_file(opened: int, name: str, limit_bytes: int) -> bytes:
    """Return a file's contents. Raises `OSError` if it is not a regular file of this user, or exceeds the limit."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened)
    try:
        found = os.fstat(file)
        if not _is_own_file(found):
            raise NotPrivateError("it is not a regular file of this user", "remove it")
        if found.st_size > limit_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return os.read(file, found.st_size)
    finally:
        os.close(file)
