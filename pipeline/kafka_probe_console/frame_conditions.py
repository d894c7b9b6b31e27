"""The conditions on archived frames that the flags of `inspect` name."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_probe_console.period import Period


@dataclass(frozen=True, slots=True)
class FrameConditions:
    """The conditions on frames; None or an empty text is none. Patterns are as in shells."""

    period: Period = field(default_factory=Period)
    flow_id: str | None = None
    address: str | None = None
    client: str | None = None
    workload: str | None = None
    cause: str | None = None
    node: str | None = None
    side: str | None = None
    api: str | None = None
    correlation_id: int | None = None
    slower_us: int | None = None
    topic: str | None = None
    group: str | None = None
    error: str | None = None
    sort: str = "time"

    @property
    def of_contents(self) -> bool:
        """Return True if frames have to be decoded for it."""
        return any((self.topic, self.group, self.error))

    @property
    def of_connections(self) -> bool:
        """Return True if connections have to be resolved first."""
        return any((self.address, self.client, self.workload, self.cause))
