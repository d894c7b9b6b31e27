"""Lists the client libraries of the lab, with the settings of their producers under common names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# "raw": clients without a library, which do what no library does.
Library = Literal["kafka-python", "librdkafka", "java", "raw"]
LIBRARIES: tuple[Library, ...] = ("kafka-python", "librdkafka", "java")
USER = "lab"  # of SASL PLAIN


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of producers; `idle_ms` 0: the library's default.

    certificate: if set, they use TLS and trust it. password: if set, they authenticate with it by SASL PLAIN.
    """

    bootstrap: str
    acks: Literal["all", "0"] = "all"
    idle_ms: int = 0
    request_timeout_ms: int = 30_000
    certificate: Path | None = None
    password: str | None = None

    def of(self, library: Library) -> dict[str, str]:
        """Return the settings under the library's names; kafka-python has underscores where others have dots."""
        timeout_ms = self.request_timeout_ms
        settings: dict[str, object] = {
            "bootstrap.servers": self.bootstrap,
            "acks": self.acks,
            "request.timeout.ms": timeout_ms,
            "delivery.timeout.ms": 2 * timeout_ms,
        }
        if self.idle_ms:
            settings["connections.max.idle.ms"] = self.idle_ms
        if self.certificate:
            settings |= {"security.protocol": "SSL"}
        if self.password:
            settings |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        match library:
            case "java":
                settings |= {"max.block.ms": timeout_ms, **self._security_of_java()}
            case "librdkafka":
                names = ("ssl.ca.location", "sasl.username", "sasl.password")
                settings |= {"socket.timeout.ms": timeout_ms, **self._security(*names)}
            case "kafka-python":
                if self.acks == "0":  # else it is idempotent, which needs acknowledgments
                    settings |= {"acks": 0, "enable.idempotence": 0}
                names = ("ssl.cafile", "sasl.plain.username", "sasl.plain.password")
                settings |= {"max.block.ms": timeout_ms, "bootstrap.timeout.ms": timeout_ms, **self._security(*names)}
        return {name: str(value) for name, value in settings.items()}

    def _security(self, authority: str, user: str, password: str) -> dict[str, object]:
        """Return the security settings under the library's names."""
        trust = {authority: self.certificate} if self.certificate else {}
        return {**trust, user: USER, password: self.password} if self.password else {**trust}

    def _security_of_java(self) -> dict[str, object]:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        if self.password:
            return {"sasl.jaas.config": f'{module} required username="{USER}" password="{self.password}";'}
        if self.certificate:
            return {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.certificate}
        return {}
