"""Runs the pipeline's job and observes it from outside: its processes, checkpoints and log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from tests.lab.processes import LabError, start, stop, tail
from tests.lab.product import EVENTS

_COMMAND = Path(sys.executable).with_name("kafka-probe-pipeline")
_STOP_S = 60.0
SAMPLE_S = 5.0


class Batch(NamedTuple):
    """A micro-batch of a query that is done; times are seconds since epoch."""

    began_s: float
    ended_s: float


class Job:
    """`with Job(directory, bootstrap, flags) as job:` runs `kafka-probe-pipeline run`. `output`: of its tables."""

    def __init__(self, directory: Path, bootstrap: str, *flags: str) -> None:
        self.output = directory / "output"
        self._log = directory / "job.log"
        self._flags = ("--bootstrap-servers", bootstrap, "--output", str(self.output), *flags)
        self._process: subprocess.Popen[bytes]
        self._samples_mib: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._process = start((_COMMAND, "run", *self._flags), log=self._log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = self._family()
        stop(self._process, timeout_s=_STOP_S)
        for left in family:
            with suppress(psutil.NoSuchProcess):
                left.kill()

    def require_running(self) -> None:
        """Raise LabError, with the end of the job's log, unless the job runs."""
        if (status := self._process.poll()) is not None:
            raise LabError(f"the job ended with status {status}:\n{tail(self._log)}")

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its processes, ended ones included."""
        # Each process counts those of its children that have ended.
        return self._sum(lambda process: sum(process.cpu_times()[:4]))

    def sample(self) -> None:
        """Read its memory if the last time was SAMPLE_S ago."""
        now_s = time.time()
        if not self._samples_mib or now_s - self._samples_mib[-1][0] > SAMPLE_S:
            self._samples_mib.append((now_s, self._sum(lambda process: process.memory_full_info().pss / 2**20)))

    def pss_mib(self, since_s: float = 0) -> list[float]:
        """Return samples of the resident memory of all its processes in MiB, as PSS: shared pages count once."""
        return [mib for at_s, mib in self._samples_mib if at_s >= since_s]

    def stop_s(self) -> float:
        """Send it SIGTERM; return the seconds until it ended.

        Raises:
            LabError: it did not end with status 0.
        """
        began_s = time.time()
        if status := stop(self._process, timeout_s=_STOP_S):
            raise LabError(f"the job ended with status {status}:\n{tail(self._log)}")
        return time.time() - began_s

    def batches(self) -> dict[str, list[Batch]]:
        """Return the batches of each query by its checkpoint, which keeps the last hundred.

        A batch begins when its offsets are written and ends when its commit is.
        """
        return {
            str(checkpoint.relative_to(self.output)): [
                Batch(began.stat().st_mtime, ended.stat().st_mtime)
                for ended in (checkpoint / "commits").glob("[0-9]*")
                if (began := checkpoint / "offsets" / ended.name).exists()
            ]
            for checkpoint in self._checkpoints()
        }

    def verdicts(self) -> Counter[str]:
        """Return how many verdicts of each cause the job has logged."""
        found = Counter[str]()
        for line in self._log.read_text().splitlines():
            for cause, count in re.findall(r"(\w+) (\d+)", line.partition(" Gave verdicts: ")[2]):
                found[cause] += int(count)
        return found

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Return True if each query that reads the events topic has processed all records before these offsets."""
        read = [offsets for checkpoint in self._checkpoints() if (offsets := _committed(checkpoint)) is not None]
        return bool(read) and all(offsets.get(part, 0) >= end for offsets in read for part, end in ends.items())

    def _checkpoints(self) -> Iterator[Path]:
        # Not deeper: the job removes temporary directories there meanwhile.
        for commits in sorted(self.output.glob("*/commits")):
            if (commits.parent / "offsets").is_dir():
                yield commits.parent

    def _sum(self, read: Callable[[psutil.Process], float]) -> float:
        """Return the sum of a reading over all its processes that are alive."""
        total = 0.0
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                total += read(process)
        return total

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        return []


def _committed(checkpoint: Path) -> dict[int, int] | None:
    """Return by partition up to which offset a query has processed events; None if it does not read their topic.

    The file has a version, a line about the batch, and a line per source, which is a dash if it has no offset.
    """
    newest = max((int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")), default=None)
    if newest is None:
        return {}
    _, _, *sources = (checkpoint / "offsets" / str(newest)).read_text().splitlines()
    for source in sources:
        if source != "-" and (offsets := json.loads(source).get(EVENTS)):
            return {int(partition): offset for partition, offset in offsets.items()}
    return None
