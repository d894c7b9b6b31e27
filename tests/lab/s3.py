"""Runs an S3 server on loopback: moto's, which `make setup-nodes` installed. It keeps objects in memory."""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab import processes
from tests.lab.processes import LabError, free_port, listens, wait_until

_ROOT = Path(__file__).parents[2]
JARS = _ROOT / "build" / "jars" / "s3-3.4.1"
_PYTHON = _ROOT / "build" / "moto" / "bin" / "python"


class S3:
    """`with S3(directory) as s3:` runs a server with one bucket.

    Raises:
        LabError: the server is not installed, or did not start.
    """

    bucket = "kafka-probe"

    def __init__(self, directory: Path) -> None:
        self._log = directory / "s3.log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Return the URL of the server."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings with which Spark reaches the server."""
        of_s3a = {
            "endpoint": self.endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "access.key": "access",
            "secret.key": "secret",
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in of_s3a.items()}

    def __enter__(self) -> Self:
        if not _PYTHON.exists():
            raise LabError(f"no moto in {_PYTHON.parent}: run `make setup-nodes`")
        command = (_PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port))
        self._process = processes.start(command, log=self._log)
        try:
            wait_until(lambda: listens("127.0.0.1", self._port), f"moto to start, its log is {self._log}")
            make_bucket = urllib.request.Request(f"{self.endpoint}/{self.bucket}", method="PUT")
            urllib.request.urlopen(make_bucket, timeout=10).close()
        except BaseException:
            processes.stop(self._process)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            processes.stop(self._process)
