"""Runs a real Prometheus Alertmanager on loopback, in a directory of the caller."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab.processes import LabError, free_port, listens, start, stop, tail, wait_until

_CONFIGURATION = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


class Receiver:
    """`with Receiver(directory) as receiver:` runs it; `stop` and `start` may be called in between, the port stays.

    It keeps nothing over a restart. Raises `LabError` if it does not start.
    """

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        configuration, log = self._directory / "alertmanager.yml", self._directory / "alertmanager.log"
        configuration.write_text(_CONFIGURATION)
        program = shutil.which("prometheus-alertmanager")
        if program is None:
            raise LabError("prometheus-alertmanager is missing: run `make setup-tests`")
        flags = (f"--config.file={configuration}", f"--storage.path={self._directory}/data")
        listening = (f"--web.listen-address=127.0.0.1:{self.port}", "--cluster.listen-address=")
        process = self._process = start([program, *flags, *listening], log=log)
        wait_until(lambda: listens("127.0.0.1", self.port) or process.poll() is not None, "the Alertmanager")
        if process.poll() is not None:
            raise LabError(tail(log))

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are not resolved."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            alerts: list[dict[str, Any]] = json.load(answer)
        return alerts

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
