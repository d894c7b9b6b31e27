"""A directory that only its owner and root can write: creates, checks and opens it and its files.

Owner and mode of the directory and of everything above it are checked before anything is opened, so that no other user
can replace a part of the path afterwards. The owner is this user, or root if this user only reads. Files are opened
relative to the open directory, never through a symbolic link, and never with a call that blocks, such as an open of a
FIFO without a writer.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # as in the kernel: MAXSYMLINKS of include/linux/namei.h


class NotPrivateError(OSError):
    """Raised if other users can or could write the directory. `strerror` is the reason, `remedy` the next step."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(errno.EPERM, reason)
        self.remedy = remedy


def open_directory(directory: Path, owner: int) -> int:
    """Open a directory that only its owner, by user id, and root can replace. The owner creates it if it is absent.

    Raises `NotPrivateError` if another user could replace it, and `OSError` if it cannot be created or opened.
    """
    directory = directory.absolute()
    missing = [one for one in directory.parents if not one.exists()]
    # Check before creating anything: a link of another user may point anywhere.
    _require_own_path((missing or [directory])[-1], owner)
    if owner == os.geteuid():
        for one in reversed(missing):
            one.mkdir(0o755, exist_ok=True)
        directory.mkdir(0o700, exist_ok=True)
    target = _require_own_path(directory, owner)
    # Open the path that was checked: a link to it may point elsewhere by now.
    opened = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if (found := os.fstat(opened).st_uid) != owner:
        os.close(opened)
        remedy = f"`chown -R {owner} {target}` if nobody else uses it, or name another directory"
        raise NotPrivateError(f"user {found} owns it instead of user {owner}", remedy)
    return opened


def _require_own_path(directory: Path, owner: int) -> Path:
    """Return the path of a directory without links; the directory itself may be absent.

    Raises `NotPrivateError` if another user could replace the directory, and `OSError` if it has too many links.
    """
    target, above = _followed(directory)
    for one in above:
        found = one.lstat()
        if found.st_uid not in (0, owner):
            reason = f"user {found.st_uid} owns {one} and can replace its contents"
            raise NotPrivateError(reason, f"name a directory whose parents belong to root or to user {owner}")
        if stat.S_ISDIR(found.st_mode) and found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
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


def make_private(opened: int, mode: int, expected: Callable[[str], bool]) -> None:
    """Set the mode of an open directory of this user. It must contain only own files with expected names.

    The contents are checked before the mode changes, because the change would damage a shared directory such as /tmp,
    and again afterwards, because others may have written until then. Raises `NotPrivateError` if it contains anything
    else.
    """
    _require_own_files(opened, expected)
    if stat.S_IMODE(os.fstat(opened).st_mode) != mode:
        os.fchmod(opened, mode)
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
        if not expected(name) or not _is_file_of(os.geteuid(), found):
            remedy = "move it away if it is not the agent's, or name an empty directory"
            raise NotPrivateError(f"it contains {name!r}, which the agent did not put there", remedy)


def _is_file_of(owner: int, found: os.stat_result) -> bool:
    # Another user may have made the second link, to a file that this user may read and they may not. A user who could
    # write the file may still have it open after the directory has become private.
    own = stat.S_ISREG(found.st_mode) and found.st_uid == owner and found.st_nlink < 2  # 0: replaced
    return own and not found.st_mode & OTHERS_WRITE


def read_file(opened: int, name: str, owner: int, limit_bytes: int) -> bytes:
    """Return a file's contents. Raises `OSError` if it is not a regular file of the owner, or exceeds the limit."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened)
    try:
        found = os.fstat(file)
        if not _is_file_of(owner, found):
            raise NotPrivateError(f"it is not a regular file of user {owner}", "remove it")
        if found.st_size > limit_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return os.read(file, found.st_size)
    finally:
        os.close(file)
