"""Starts an agent on spool directories into which another user has put files.

The agent refuses a directory with one line and status 3, or works with it: then it delivers and stops in order. Of a
file that only root may read nothing gets into a topic.
"""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.builders.wire import MARKER
from tests.lab.cgroups import memory_cgroup
from tests.lab.processes import LabError, tail
from tests.lab.product import COULD_NOT_START
from tests.programs.attack.lab import Lab

NAME = "0000000000000001-1-agent.ndjson.gz"
_BOMB_BYTES = 1 << 30
_NOBODY = 65_534


def _fifo(spool: Path) -> None:
    os.mkfifo(spool / NAME)


def _symlink(spool: Path) -> None:
    secret = spool.parent / "secret.gz"
    secret.write_bytes(gzip.compress(MARKER + b"\n"))
    (spool / NAME).symlink_to(secret)


def _bomb(spool: Path) -> None:
    packer = zlib.compressobj(9, wbits=31)  # about 1 MiB
    lines = b"{}\n" * (1 << 20)
    with (spool / NAME).open("wb") as file:
        for _ in range(_BOMB_BYTES // len(lines)):
            file.write(packer.compress(lines))
        file.write(packer.flush())


def _count(spool: Path) -> None:
    (spool / NAME.replace("-1-", f"-{1 << 65}-")).write_bytes(gzip.compress(b"{}\n"))


def _foreign(spool: Path) -> None:
    (spool / "notes.txt").write_text("not a batch\n")


def _other_owner(spool: Path) -> None:
    os.chown(spool, _NOBODY, _NOBODY)


def _open_parent(spool: Path) -> None:
    spool.parent.chmod(0o777)


SPOOLS: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "symlink": _symlink,
    "bomb": _bomb,
    "count": _count,
    "foreign": _foreign,
    "other-owner": _other_owner,
    "open-parent": _open_parent,
}


def offer(lab: Lab) -> dict[str, Any]:
    """Start an agent on each directory; return the results and the highest peak of memory in bytes."""
    outcomes: dict[str, str] = {}
    peaks = []
    for name, make in SPOOLS.items():
        spool = lab.directory / f"hostile-{name}" / "spool"
        shutil.rmtree(spool.parent, ignore_errors=True)
        spool.mkdir(parents=True, mode=0o700)
        make(spool)
        with memory_cgroup(f"hostile-{name}") as (directory, peak):
            agent = lab.agent(f"hostile-{name}", "--ports", "1", "--spool-dir", str(spool), inside=directory)
            outcomes[name] = "works"
            try:
                with agent:
                    pass
            except LabError as error:
                refused = f"status {COULD_NOT_START}" in str(error) and "Traceback" not in tail(agent.log)
                outcomes[name] = "refused" if refused else str(error)
            finally:
                agent.kill()
                peaks.append(peak.read())
    return {"spools": outcomes, "peak_bytes": max(peaks)}


def faults(outcomes: dict[str, str], delivered: dict[str, int]) -> Iterator[str]:
    """Yield the violated expectations; delivered: events by node."""
    for name, outcome in outcomes.items():
        if outcome not in {"works", "refused"}:
            yield f"spool {name}: {outcome}"
        if outcome == "works" and not delivered.get(f"hostile-{name}"):
            yield f"spool {name}: the agent delivers nothing"
