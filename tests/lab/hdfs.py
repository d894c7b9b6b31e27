"""Runs a real HDFS on loopback: a NameNode and a DataNode, from the jars that `make setup-nodes` fetched."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.lab import processes
from tests.lab.http import get
from tests.lab.java import SHORT_LIVED
from tests.lab.processes import LabError, free_port, tail, wait_until

JARS = Path(__file__).parents[2] / "build" / "jars" / "hdfs-3.4.1"
# Hadoop's classes and loggers, which PySpark has.
_OF_SPARK = Path(pyspark.__file__).parent / "jars"
_START_S = 120
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"


class Hdfs:
    """`with Hdfs(directory) as hdfs:` runs HDFS from ready to stopped, and removes its data.

    `stop_name_node` and `start_name_node` may be called in between: the port and the data stay.

    Raises:
        LabError: it did not start; the text ends with the log's tail.
    """

    def __init__(self, directory: Path) -> None:
        self.log = directory / "hdfs.log"
        self._directory, self._data = directory, directory / "data"
        self._port, self._pages = free_port(), free_port()
        self._name_node: subprocess.Popen[bytes] | None = None
        self._data_node: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """Return the URI of its root."""
        return f"hdfs://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._configure(
            {
                "fs.defaultFS": self.uri,
                "hadoop.tmp.dir": str(self._data),
                "dfs.replication": "1",
                "dfs.namenode.http-address": f"127.0.0.1:{self._pages}",
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                **{f"dfs.datanode.{name}": "127.0.0.1:0" for name in ("address", "http.address", "ipc.address")},
            }
        )
        formatted = self._run(_NAME_NODE, "-format", "-force")
        if formatted.wait(_START_S):
            raise LabError(f"HDFS was not formatted:\n{tail(self.log)}")
        try:
            self._data_node = self._run(_DATA_NODE)
            self.start_name_node()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def start_name_node(self) -> None:
        """Start the NameNode, and return when it accepts writes."""
        self._name_node = self._run(_NAME_NODE)
        wait_until(self._is_ready, f"HDFS to start, its log is {self.log}", timeout_s=_START_S)

    def stop_name_node(self) -> None:
        """Stop the NameNode: from then on nothing can be read or written."""
        if self._name_node:
            processes.stop(self._name_node)

    def _stop(self) -> None:
        for process in (self._data_node, self._name_node):
            if process:
                processes.stop(process)
        shutil.rmtree(self._data, ignore_errors=True)

    def _is_ready(self) -> bool:
        if any(process and process.poll() is not None for process in (self._data_node, self._name_node)):
            raise LabError(f"HDFS ended:\n{tail(self.log)}")
        with suppress(OSError, ValueError, KeyError):  # it does not answer yet
            beans = get(f"http://127.0.0.1:{self._pages}/jmx?qry=Hadoop:service=NameNode,name=*Info").json()["beans"]
            info = {name: value for bean in beans for name, value in bean.items()}
            return bool(info["Safemode"] == "" and info["LiveNodes"] != "{}")
        return False

    def _configure(self, settings: dict[str, str]) -> None:
        lines = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
        text = "<configuration>" + "".join(lines) + "</configuration>"
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self._directory / name).write_text(text)

    def _run(self, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
        if not JARS.exists():
            raise LabError(f"no jars in {JARS}: run `make setup-nodes`")
        kinds = "hadoop-client-*", "log4j-*", "slf4j-api-*", "jcl-over-slf4j-*"
        shared = (jar for kind in kinds for jar in _OF_SPARK.glob(f"{kind}.jar"))
        class_path = ":".join(map(str, (self._directory, *JARS.glob("*.jar"), *shared)))
        command = ["java", "-Xmx256m", *SHORT_LIVED, "-cp", class_path, main_class, *arguments]
        return processes.start(command, log=self.log)
