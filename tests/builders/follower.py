"""The sink of `follow`, fed by an agent that is fed samples, and the samples of exchanges that pass now."""

from __future__ import annotations

import os
import time
from typing import Any

from kafka_probe.follow import FollowSink
from kafka_probe.follow_outputs import Output, TextOutput
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.setting_types import ArchiveFilter
from tests.builders.fed_agent import SECOND_NS, Fed
from tests.builders.samples import Samples, request, response, stream

METADATA = ApiKey.METADATA
MARK = b"\0end\n"


def asked(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, ago_s: float = 0.1, **of: Any) -> Samples:
    return request(api_key, 1, conn, correlation_id=correlation_id, ts_ns=ns_ago(ago_s), frame_bytes=60, **of)


def answered(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, ago_s: float = 0.1) -> Samples:
    facts = {"correlation_id": correlation_id, "latency_us": 1500, "frame_bytes": 300}
    return response(api_key, 1, conn, ts_ns=ns_ago(ago_s), **facts)


def exchange(correlation_id: int, conn: int = 1, *, api_key: int = METADATA, **of: Any) -> Samples:
    return stream(asked(correlation_id, conn, api_key=api_key, **of), answered(correlation_id, conn, api_key=api_key))


def ns_ago(ago_s: float) -> int:
    return time.monotonic_ns() - round(ago_s * SECOND_NS)


class Follower:
    """An agent that is fed samples, the sink of `follow`, and what this prints."""

    def __init__(self, output: Output | None = None, **choice: str) -> None:
        settings = {"archive": "all", "recorder_bytes": 0, "archive_filter": ArchiveFilter(**choice)}
        self.fed = Fed(archive=settings)
        self.notices: list[str] = []
        self.read, self.written = os.pipe()
        output = output or TextOutput(self.written, verbose=False)
        self.sink = FollowSink(output, self.written, notice=self.notices.append)
        self.sink.connections = self.fed.agent.connections

    def interval(self, *samples: Samples) -> list[str]:
        """Return the lines that are printed after these samples."""
        return self.interval_bytes(*samples).decode().splitlines()

    def interval_bytes(self, *samples: Samples) -> bytes:
        before = len(self.fed.sink.events), len(self.fed.archive_sink.events)
        if samples:
            self.fed.see(*samples)
        self.fed.report()
        self.sink.send(self.fed.archive_sink.events[before[1] :])  # type: ignore[arg-type]  # events as dictionaries
        self.sink.send(self.fed.sink.events[before[0] :])  # type: ignore[arg-type]  # the same
        return self.printed()

    def printed(self) -> bytes:
        self.sink.write([MARK])
        output = b""
        while not output.endswith(MARK):
            output += os.read(self.read, 1 << 16)
        return output.removesuffix(MARK)

    def close(self) -> None:
        self.sink.close(1)
        os.close(self.read)
        os.close(self.written)
