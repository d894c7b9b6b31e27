"""Fills an outbox with a spool, waits for its disk, and empties it."""

from __future__ import annotations

import os
from pathlib import Path

from kafka_probe.sinks.outbox import Outbox
from tests.lab.processes import wait_until

MIB = 1 << 20


def line(number: int, padding: int = 0) -> bytes:
    """Return a line with a padding of hexadecimal digits, which gzip halves."""
    return b"%d %s\n" % (number, os.urandom(padding // 2).hex().encode())


def on_disk(outbox: Outbox) -> None:
    """Wait until nothing is left in memory."""
    wait_until(lambda: not outbox.waiting_bytes, "the disk to have it all", every_s=0.005)


def drained(outbox: Outbox) -> list[int]:
    """Return all events in the order of delivery."""
    outbox.close()
    numbers = []
    while batch := outbox.head():
        numbers += [int(text.split()[0]) for text in batch.lines.splitlines()]
        outbox.finish(batch)
    return numbers


def files(directory: Path) -> list[Path]:
    """Return the files of a spool, oldest first."""
    return sorted(directory.iterdir())
