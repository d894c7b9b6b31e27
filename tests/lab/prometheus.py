"""Runs a real Prometheus on loopback that scrapes an agent and has the product's rules."""

from __future__ import annotations

import json
import shutil
import urllib.parse
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab.http import get
from tests.lab.monitoring import RULES
from tests.lab.processes import LabError, free_port, start, stop, tail, wait_until

EVERY = "1s"


class Prometheus:
    """`with Prometheus(directory, agent, token, alertmanager) as prometheus:` runs it from ready to stopped.

    agent, alertmanager: host:port. Raises `LabError` if it does not start.
    """

    def __init__(self, directory: Path, agent: str, token: str, alertmanager: str) -> None:
        self._directory = directory
        self._address = f"127.0.0.1:{free_port()}"
        self._configuration = {
            "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "kafka-probe",
                    "authorization": {"credentials": token},
                    "static_configs": [{"targets": [agent]}],
                }
            ],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        }

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query."""
        answer = get(f"http://{self._address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}").json()
        if answer["status"] != "success":
            raise LabError(f"Prometheus refuses {expression}: {answer['error']}")
        samples: list[dict[str, Any]] = answer["data"]["result"]
        return samples

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        configuration, log = self._directory / "prometheus.yml", self._directory / "prometheus.log"
        configuration.write_text(json.dumps(self._configuration))
        program = shutil.which("prometheus")
        if program is None:
            raise LabError("prometheus is missing: run `make setup-tests`")
        flags = (f"--config.file={configuration}", f"--storage.tsdb.path={self._directory}/data")
        process = self._process = start([program, *flags, f"--web.listen-address={self._address}"], log=log)
        try:
            wait_until(lambda: self._is_ready() or process.poll() is not None, "Prometheus")
        except LabError:
            stop(process)
            raise
        if process.poll() is not None:
            raise LabError(tail(log))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop(self._process)

    def _is_ready(self) -> bool:
        try:
            return get(f"http://{self._address}/-/ready").status == 200
        except OSError:
            return False
