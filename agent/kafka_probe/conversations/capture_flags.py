"""The flags by which `follow` and `inspect` write a capture file, and the file that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP
from pathlib import Path
from stat import S_ISREG
from typing import IO

import click
from pydantic import ByteSize, TypeAdapter, ValidationError

from kafka_probe.errors import UsageError

_DEFAULT_BYTES = 1 << 30
_LEAST_BYTES = 64 << 10
_TO_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_EXAMPLE = "--pcapng - | wireshark -k -i -"


def capture_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add --pcapng and --pcapng-bytes to a command."""
    size = click.option("--pcapng-bytes", metavar="SIZE", callback=_size, help="maximum size of FILE [default: 1GiB]")
    file = click.option("--pcapng", metavar="FILE", help="write packets for Wireshark to FILE; -: to standard output")
    return file(size(command))


def capture_size(pcapng: str | None, pcapng_bytes: int | None, *, as_json: bool = False) -> int:
    """Return the maximum size of the capture file. Raises `UsageError` if the flags do not go together."""
    if pcapng == "":
        raise UsageError("Give a file for --pcapng, or - for standard output.")
    if pcapng is None and pcapng_bytes is not None:
        raise UsageError("--pcapng-bytes has no effect without --pcapng.")
    if pcapng is not None and as_json:
        raise UsageError("Use one of --json and --pcapng.")
    return pcapng_bytes or _DEFAULT_BYTES


@contextmanager
def capture_output(name: str) -> Iterator[IO[bytes]]:
    """Open the file that --pcapng names. What it contains remains until `emptied`.

    Only its owner may read a new file, which is removed if nothing was written.

    Raises:
        UsageError: it cannot be written, is a terminal or a symbolic link, or belongs to another user.
    """
    if name == "-":
        _refuse_terminal(sys.stdout.isatty())
        yield sys.stdout.buffer
        return
    path = Path(name)
    is_new = not path.exists()
    try:
        descriptor = os.open(path, _TO_APPEND, mode=0o600)
    except OSError as error:
        reason = "it is a symbolic link; name the file, or - for a pipe" if error.errno == ELOOP else error.strerror
        raise UsageError(f"The file {name!r} of --pcapng cannot be written: {reason}.") from None
    try:
        with os.fdopen(descriptor, "ab") as file:
            _refuse_terminal(file.isatty())
            found = os.fstat(descriptor)
            if S_ISREG(found.st_mode) and found.st_uid != os.geteuid():
                raise UsageError(f"The file {name!r} of --pcapng belongs to another user: name a new one.")
            yield file
    finally:
        with suppress(FileNotFoundError):
            if is_new and not path.stat().st_size:
                path.unlink()


def emptied(file: IO[bytes]) -> IO[bytes]:
    """Remove what a file contains, unless it is standard output, and return it."""
    if file is not sys.stdout.buffer and S_ISREG(os.fstat(file.fileno()).st_mode):
        file.truncate(0)
    return file


def _refuse_terminal(is_terminal: bool) -> None:
    if is_terminal:
        raise UsageError(f"Packets are binary and cannot be printed to a terminal: pipe them, as in {_EXAMPLE}")


def _size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise click.BadParameter(f"{text} is not a size: write it as in 512MiB.") from None
    if size < _LEAST_BYTES:
        raise click.BadParameter(f"{text} is below 64KiB.")
    return size
