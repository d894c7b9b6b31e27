"""Runs a real Apache Kafka broker (KRaft, one node) in a directory of the caller, on loopback.

It is ready when it answers Metadata with itself. How many requests it has answered is read from its metrics over JMX,
which uses no Kafka connection and so does not change what it counts.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import struct
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab.java import SHORT_LIVED, client_apis, java
from tests.lab.processes import LabError, free_port, listens, start, stop, tail, wait_until

RequestCounts = dict[tuple[str, int], int]

# Settings of a broker whose requests are counted. It begins each connection to its own controller with ApiVersions,
# which JMX counts, too. So none of these may close because it is idle, or because a slow disk delays a heartbeat.
COUNTED = {
    "connections.max.idle.ms": "86400000",
    "broker.heartbeat.interval.ms": "30000",
    "broker.session.timeout.ms": "90000",
}

_REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=*,version=*"
_REQUEST_COUNT = re.compile(r"request=(\w+),version=(\d+):Count$")
# Metadata v1 for no topic, client id "lab": answered with the brokers that are registered and not fenced.
_METADATA = struct.pack(">hhih3si", 3, 1, 1, 3, b"lab", 0)


class Broker:
    """`with Broker(directory) as broker:` runs a broker from ready to killed, and removes its data.

    `port`: 0 takes a free one. `listeners`: further ones, by security protocol. `properties` override
    server.properties. `keep`: it is stopped in order, and its data stay. `lasting`: for measurements and hours of work;
    other brokers use the JVM's quick compiler alone. `joins`: the first broker of the cluster that this one joins.
    `within`: the words of a command that runs the broker in a container, whose end is that of the broker. Without it,
    `stop`, `kill` and `start` may be called in between: the ports and the data stay. The log is `log`.

    Raises:
        LabError: the broker did not start; the text ends with the log's tail.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        listeners: Mapping[str, int] | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        keep: bool = False,
        lasting: bool = False,
        joins: Broker | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.host = host
        self.port = port or free_port(host)
        self.log = directory / "broker.log"
        self._data = directory / "data"
        self._configuration = directory / "server.properties"
        self._jmx_port = free_port()
        self._heap_mb = heap_mb
        self._keep = keep
        self._compiler = () if lasting else SHORT_LIVED
        self._process: subprocess.Popen[bytes] | None = None
        self._listeners = listeners or {}
        self._joins = joins
        self._within = within
        self._cluster_id: str = (
            joins._cluster_id if joins else urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        )
        self._properties = {**self._defaults(), **(properties or {})}

    @property
    def bootstrap(self) -> str:
        """Return host:port for the option bootstrap.servers."""
        return self._at(self.port)

    def address(self, protocol: str) -> str:
        """Return host:port of one of the further listeners."""
        return self._at(self._listeners[protocol])

    @property
    def pid(self) -> int:
        """Return the process id of the running broker."""
        if self._process is None:
            raise LabError(f"the broker in {self.directory} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start on the data that is there, or on fresh data, and return when it is ready."""
        if listens(self.host, self.port):
            raise LabError(f"{self.bootstrap} is taken")
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._data.exists():
            self._format()
        jmx = {
            "port": self._jmx_port,
            "rmi.port": self._jmx_port,
            "host": "127.0.0.1",
            "authenticate": "false",
            "ssl": "false",
        }
        options = [f"-Dcom.sun.management.jmxremote.{name}={value}" for name, value in jmx.items()]
        options.append("-Djava.rmi.server.hostname=127.0.0.1")
        options += self._compiler
        command = java("kafka.Kafka", self._configuration, heap_mb=self._heap_mb, options=tuple(options))
        self._process = start([*self._within, *command], log=self.log)
        try:
            wait_until(self._is_ready, f"the broker on {self.bootstrap}", timeout_s=120, every_s=0.1)
        except LabError as error:
            self.kill()
            raise LabError(f"{error}; its log {self.log} ends with:\n{tail(self.log)}") from None

    def stop(self) -> int | None:
        """Shut down in order: SIGTERM; returns the exit status, None if it did not run."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it without notice: SIGKILL."""
        self._end(signal.SIGKILL)

    def request_counts(self) -> RequestCounts:
        """Return the number of answered requests per (API name, version), from the broker's metrics over JMX.

        A request counts once its response has been sent: wait for clients to be done before reading. APIs that only
        brokers and controllers speak are left out; what else goes to the controller's port at start is in the count.
        """
        url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{self._jmx_port}/jmxrmi"
        flags = ("--one-time", "true", "--report-format", "properties", "--attributes", "Count", "--jmx-url", url)
        command = java("org.apache.kafka.tools.JmxTool", *flags, "--object-name", _REQUESTS, options=SHORT_LIVED)
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
        counts: RequestCounts = {}
        for line in answer.stdout.splitlines():
            name, _, value = line.rpartition("=")
            if (found := _REQUEST_COUNT.search(name)) and found[1] in client_apis():
                counts[found[1], int(found[2])] = int(value)
        if not counts:
            raise LabError(f"no request metrics over JMX from {self.bootstrap}: {answer.stdout}{answer.stderr}")
        return counts

    def settled_request_counts(self) -> RequestCounts:
        """Wait until `request_counts` are constant, and return them.

        The broker answers a consumer's last poll after its connection is closed.

        Requires that nobody sends requests any more.
        """
        readings: list[RequestCounts] = [{}]

        def settled() -> bool:
            readings.append(self.request_counts())
            return readings[-1] == readings[-2]

        # longer than the 500 ms that a broker holds an idle poll
        wait_until(settled, f"the request counts of {self.bootstrap} to settle", every_s=0.6)
        return readings[-1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keep:
            self.stop()
        else:
            self.kill()
            shutil.rmtree(self._data, ignore_errors=True)

    def _at(self, port: int) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def _defaults(self) -> dict[str, str]:
        leader = self._joins and self._joins._properties
        controller = leader["controller.quorum.bootstrap.servers"] if leader else f"127.0.0.1:{free_port()}"
        others = (f"{protocol}://{self.address(protocol)}" for protocol in self._listeners)
        listeners = ",".join((f"PLAINTEXT://{self.bootstrap}", *others))
        protocols = (
            "CONTROLLER:PLAINTEXT",
            *(f"{protocol}:{protocol}" for protocol in ("PLAINTEXT", *self._listeners)),
        )
        return {
            "process.roles": "broker" if leader else "broker,controller",
            "node.id": "2" if leader else "1",
            "listeners": listeners if leader else f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(protocols),
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": str(self._data),
            "auto.create.topics.enable": "true",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            # after a kill, the old registration has to expire first
            "broker.session.timeout.ms": "6000",
            "broker.heartbeat.interval.ms": "1000",
            "group.initial.rebalance.delay.ms": "0",
        }

    def _format(self) -> None:
        self._configuration.write_text("".join(f"{name}={value}\n" for name, value in self._properties.items()))
        role = "--no-initial-controllers" if self._joins else "--standalone"
        # with "=": an id may start with a dash
        flags = ("format", role, f"--cluster-id={self._cluster_id}", f"--config={self._configuration}")
        command = java("kafka.tools.StorageTool", *flags, options=SHORT_LIVED)
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if answer.returncode:
            raise LabError(f"cannot format {self._data}: {answer.stdout}{answer.stderr}")

    def _is_ready(self) -> bool:
        if self._process is not None and (status := self._process.poll()) is not None:
            raise LabError(f"the broker on {self.bootstrap} ended with status {status}")
        return listens(self.host, self.port) and self._answers()

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=2) as connection:
                connection.sendall(struct.pack(">i", len(_METADATA)) + _METADATA)
                answer = connection.makefile("rb").read(12)
        except OSError:
            return False
        # size, correlation id, number of brokers
        return len(answer) == 12 and struct.unpack(">iii", answer)[2] == (2 if self._joins else 1)

    def _end(self, by: signal.Signals) -> int | None:
        process, self._process = self._process, None
        return None if process is None else stop(process, by=by)
