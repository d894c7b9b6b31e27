"""The flags by which `follow` and `inspect` write a capture file, and the file that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from stat import S_ISREG
from typing import IO

import click
from pydantic import ByteSize, TypeAdapter, ValidationError

from kafka_probe.errors import UsageError

DEFAULT_BYTES = 1 << 30
_LEAST_BYTES = 64 << 10
_EXAMPLE = "--pcapng - | wireshark -k -i -"


def capture_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add --pcapng and --pcapng-bytes to a command."""
    size = "maximum size of that file [default: 1GiB]"
    command = click.option("--pcapng-bytes", metavar="SIZE", callback=_size, help=size)(command)
    return click.option("--pcapng", metavar="FILE", help="write packets for Wireshark; -: to standard output")(command)


def require_capture_flags(pcapng: str | None, pcapng_bytes: int | None, *, as_json: bool = False) -> None:
    """Raise `UsageError` if the flags do not go together."""
    if pcapng == "":
        raise UsageError("Give a file for --pcapng, or - for standard output.")
    if pcapng is None and pcapng_bytes is not None:
        raise UsageError("--pcapng-bytes has no effect without --pcapng.")
    if pcapng is not None and as_json:
        raise UsageError("Use one of --json and --pcapng.")


@contextmanager
def capture_output(name: str) -> Iterator[IO[bytes]]:
    """Open the file that --pcapng names, for its owner only. What it contains remains until `emptied`.

    Raises:
        UsageError: it cannot be written, or is a terminal.
    """
    if name == "-":
        _refuse_terminal(sys.stdout.isatty())
        yield sys.stdout.buffer
        return
    try:
        file = open(name, "ab", opener=partial(os.open, mode=0o600))  # noqa: SIM115  # closed below
    except OSError as error:
        raise UsageError(f"The file {name!r} of --pcapng cannot be written: {error.strerror}.") from None
    with file:
        _refuse_terminal(file.isatty())
        yield file


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
