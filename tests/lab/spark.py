"""Runs a standalone Spark cluster on loopback from the programs in the pyspark package: a master and its workers.

Executors are found as children of their worker's process; the driver's web pages list them, too.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from tests.lab.http import get
from tests.lab.processes import LabError, free_port, start, stop, tail, wait_until

HOST = "127.0.0.1"
HOME = Path(pyspark.__file__).parent
# As in an active environment: spark-submit finds Spark by the first python3 of the path.
ACTIVE = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Cluster:
    """`with Cluster(directory) as cluster:` is a master and workers of one core each, from ready to ended.

    wrapper: a command that runs each worker, such as `unshare --mount`. The log of all is `log`.

    Raises:
        LabError: it did not start; the text ends with the log's tail.
    """

    def __init__(self, directory: Path, *, workers: int = 2, wrapper: Sequence[str] = ()) -> None:
        self.log = directory / "cluster.log"
        self._directory = directory
        self._count = workers
        self._wrapper = wrapper
        self._port, self._pages = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """Return the URL of the master."""
        return f"spark://{HOST}:{self._port}"

    def executors(self) -> dict[str, psutil.Process]:
        """Return the running executors, by the driver's number."""
        found = {}
        for worker in self._processes[1:]:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(worker.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        words = child.cmdline()
                        if _EXECUTOR in words:
                            found[words[words.index("--executor-id") + 1]] = child
        return found

    def __enter__(self) -> Self:
        try:
            self._start("master.Master", "--port", str(self._port), "--webui-port", str(self._pages))
            for number in range(self._count):
                folder = self._directory / f"worker-{number}"
                size = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
                self._start("worker.Worker", *size, "--work-dir", str(folder), self.master, wrapper=self._wrapper)
            wait_until(self._is_ready, "the workers to register with the master", timeout_s=120, every_s=0.2)
        except LabError as error:
            self._stop()
            raise LabError(f"{error}; the log {self.log} ends with:\n{tail(self.log)}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self, name: str, *arguments: str, wrapper: Sequence[str] = ()) -> None:
        command: list[str | Path] = [
            *wrapper,
            HOME / "bin" / "spark-class",
            f"org.apache.spark.deploy.{name}",
            "--host",
            HOST,
            *arguments,
        ]
        variables = {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        self._processes.append(start(command, log=self.log, env=variables))

    def _is_ready(self) -> bool:
        for process in self._processes:
            if (status := process.poll()) is not None:
                raise LabError(f"a part of the Spark cluster ended with status {status}")
        with suppress(OSError, ValueError):  # not there, or no JSON yet
            return bool(get(f"http://{HOST}:{self._pages}/json/").json()["aliveworkers"] == self._count)
        return False

    def _stop(self) -> None:
        """Stop the workers first: they end their executors."""
        while self._processes:
            stop(self._processes.pop())


def documented(start: str) -> list[str]:
    """Return the arguments of the command in the pipeline's guide that begins with `start`."""
    text = (Path(__file__).parents[2] / "docs/guide/pipeline.md").read_text().replace("\\\n", "")
    (command,) = re.findall(rf"^({re.escape(start)}.*)$", text, re.MULTILINE)
    return shlex.split(command)
