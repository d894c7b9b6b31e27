"""Many producers of one library in one process, in a namespace and a cgroup of the lab, to be told what to do.

Settings are told in the lab's words once, and become each library's own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.lab.java import SHORT_LIVED, java
from tests.lab.network import Connection, Namespace
from tests.lab.processes import LabError, start, stop, tail, wait_until
from tests.lab.sockets import sockets

Library = Literal["kafka-python", "librdkafka", "java", "raw"]
LIBRARIES: tuple[Library, ...] = ("kafka-python", "librdkafka", "java")
ROOT = Path(__file__).parents[2]
USER = "lab"  # of SASL PLAIN

_PROGRAMS = Path(__file__).parent / "producers"
_PATIENCE_MS = 600_000


@dataclass(frozen=True, slots=True)
class Settings:
    """What producers are set to; `idle_ms` 0: the library's default.

    certificate: they speak TLS, and trust this one. password: they authenticate with it, by SASL PLAIN. patient: they
    wait for ten minutes before they connect once more; librdkafka does not.
    """

    bootstrap: str
    acks: Literal["all", "0"] = "all"
    idle_ms: int = 0
    request_timeout_ms: int = 30_000
    certificate: Path | None = None
    password: str | None = None
    patient: bool = False

    def of(self, library: Library) -> dict[str, str]:
        """The same as the library has it."""
        timeouts = {"request.timeout.ms": self.request_timeout_ms, "delivery.timeout.ms": 2 * self.request_timeout_ms}
        settings: dict[str, object] = {"bootstrap.servers": self.bootstrap, "acks": self.acks, **timeouts}
        if self.acks == "0" and library != "librdkafka":
            settings["enable.idempotence"] = "false" if library == "java" else 0
        if library == "librdkafka":
            settings["socket.timeout.ms"] = self.request_timeout_ms
        else:
            settings["max.block.ms"] = self.request_timeout_ms
        if library == "kafka-python":
            settings |= {"acks": -1 if self.acks == "all" else 0, "bootstrap.timeout.ms": self.request_timeout_ms}
        if self.idle_ms:
            settings["connections.max.idle.ms"] = self.idle_ms
        if self.patient:
            settings |= {"reconnect.backoff.ms": _PATIENCE_MS, "reconnect.backoff.max.ms": _PATIENCE_MS}
        settings |= self._security(library)
        return {name: str(value) for name, value in settings.items()}

    def _security(self, library: Library) -> dict[str, object]:
        if self.certificate:
            match library:
                case "java":
                    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.certificate}
                case "librdkafka":
                    trust = {"ssl.ca.location": self.certificate}
                case _:
                    trust = {"ssl.cafile": self.certificate}
            return {"security.protocol": "SSL", **trust}
        if self.password:
            sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
            match library:
                case "java":
                    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
                    who = f'{module} required username="{USER}" password="{self.password}";'
                    return {**sasl, "sasl.jaas.config": who}
                case "librdkafka":
                    return {**sasl, "sasl.username": USER, "sasl.password": self.password}
                case _:
                    return {**sasl, "sasl.plain.username": USER, "sasl.plain.password": self.password}
        return {}


class Fleet:
    """`with Fleet(...) as fleet:` is a process with `count` producers, from made to ended; its log is `log`.

    `inside` is the directory of a cgroup.

    Raises:
        LabError: it did not start, or not carry out an order in time; the text ends with the log's tail.
    """

    def __init__(
        self,
        namespace: Namespace,
        library: Library,
        settings: Settings,
        directory: Path,
        *,
        count: int,
        topic: str,
        name: str,
        inside: Path | None = None,
    ) -> None:
        self.name = name
        self.count = count
        self.log = directory / f"{name}.log"
        self._answers = directory / f"{name}.out"
        self._namespace = namespace
        self._inside = inside
        named = (f"{setting}={value}" for setting, value in settings.of(library).items())
        self._command = [*_program(library), name, str(count), topic, *named]
        self._orders = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._running.pid

    def tell(self, order: str) -> None:
        """Give an order, and return at once."""
        orders = self._running.stdin
        assert orders is not None
        orders.write(f"{order}\n".encode())
        orders.flush()
        self._orders += 1

    def wait_done(self) -> None:
        """Return when all orders are carried out."""
        wait_until(self._is_done, f"{self.name} to carry out its orders", timeout_s=90)

    def send(self, size: int = 100) -> None:
        """Let every producer send a record of so many bytes; returns when each was delivered or given up."""
        self.tell(f"send {size}")
        self.wait_done()

    def connections(self) -> set[Connection]:
        """Its established connections."""
        return {one.connection for one in sockets(self._namespace) if one.pid == self.pid and one.state == "ESTAB"}

    def end(self, order: Literal["stop", "leave"]) -> None:
        """Give an order that ends it, and return when it has ended."""
        self.tell(order)
        self.wait_ended()

    def wait_ended(self) -> None:
        """Return when its process has ended."""
        wait_until(lambda: self._running.poll() is not None, f"{self.name} to end", timeout_s=60)

    def kill(self) -> None:
        """End it without notice: SIGKILL."""
        stop(self._running, by=signal.SIGKILL)

    def __enter__(self) -> Self:
        for leftover in (self.log, self._answers):
            leftover.unlink(missing_ok=True)
        with self._namespace.inside():
            self._process = start(
                self._command, log=self.log, stdout=self._answers, cwd=ROOT, inside=self._inside, told=True
            )
        self._orders = 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop(self._running, by=signal.SIGKILL)
        if orders := self._running.stdin:
            orders.close()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LabError(f"{self.name} was not started")
        return self._process

    def _is_done(self) -> bool:
        if (status := self._running.poll()) is not None:
            raise LabError(f"{self.name} ended with status {status}:\n{tail(self.log)}")
        return self._answers.read_text().count("done\n") >= self._orders


def _program(library: Library) -> Sequence[str]:
    if library == "java":
        return java(str(_PROGRAMS / "Producers.java"), options=SHORT_LIVED)
    return (sys.executable, "-m", f"tests.lab.producers.{library.replace('-', '_')}")
