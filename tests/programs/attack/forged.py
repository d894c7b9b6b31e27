"""Writes forged events to the events topic of a running pipeline, which must still count honest clients' traffic."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

from confluent_kafka import Producer

from tests.builders.hostile import NAMES
from tests.lab.processes import LabError, kill_family, start, tail, wait_until
from tests.lab.product import EVENTS, TRAFFIC
from tests.lab.topics import read_topic
from tests.programs.attack.lab import Lab

HONEST = "java-producer"
_MOST = 2**63 - 1
_LONG_NAME = 10_000_000
_PATIENCE_S = 90
# That grow the table after the forgery: what was on its way before is in the first of them.
_BATCHES = 3


def forged(event: dict[str, Any]) -> list[bytes]:
    """Return records made of a true flow event, with forged numbers, names and times, and of other lines."""
    stranger = event | {"agent_id": "forged", "seq": 0}
    sums = [stranger | {"seq": n, "requests": _MOST, "request_bytes": _MOST, "responses": _MOST} for n in range(3)]
    names = [stranger | {"seq": n, "client": {"id": name}} for n, name in enumerate(NAMES, 3)]
    others = [
        event | {"seq": _MOST},
        stranger | {"agent_id": "forged-name", "client": {"id": "x" * _LONG_NAME}},
        stranger | {"agent_id": "forged-future", "ts": 2**62},
        stranger | {"agent_id": "forged-past", "ts": -(2**62)},
        stranger | {"agent_id": "forged-types", "requests": {"a": 1}, "client": [], "topics": "x"},
        stranger | {"agent_id": "forged-negative", "requests": -5, "seq": -1},
    ]
    lines = [json.dumps(one).encode() for one in (*others, *sums, *names)]
    return [*lines, b"\xff\x00{", b"[" * 100_000, b"null", b"[]", b'{"v":1}', b'{"kind":"flow","ts":1e400}', b"{" * 9]


def forge(lab: Lab) -> dict[str, Any]:
    """Run the pipeline, send forged events to it, and wait for honest traffic after them."""
    output, log = lab.directory / "pipeline", lab.directory / "pipeline.log"
    lab.logs.append(log)
    flags = ("--bootstrap-servers", lab.sink.bootstrap, "--output", output, "--trigger-interval", "3")
    command = (sys.executable, "-m", "kafka_probe_pipeline.job", "run", *flags)
    pipeline = start(command, log=log, env=lab.environment)

    def counted() -> int:
        return sum(_requests(row) for row in _rows(lab) if row.get("client_id") == HONEST)

    def grows(than: int) -> bool:
        if pipeline.poll() is not None:
            raise LabError(f"the pipeline ended:\n{tail(log)}")
        return counted() > than

    try:
        wait_until(lambda: grows(0), "the pipeline to count", timeout_s=_PATIENCE_S, every_s=1)
        producer = Producer(
            {
                "bootstrap.servers": lab.sink.bootstrap,
                "compression.type": "zstd",
                "message.max.bytes": 20_000_000,
                "log_level": 0,
            }
        )
        refused: list[str] = []
        records = forged(_honest_flow(lab))
        for value in records:
            producer.produce(EVENTS, value, on_delivery=lambda error, _: refused.append(str(error)) if error else None)
        producer.flush(30)
        for _ in range(_BATCHES):
            before = counted()
            wait_until(partial(grows, before), "honest traffic after forged events", timeout_s=_PATIENCE_S, every_s=1)
        wrapped = sum(_requests(row) < 0 for row in _rows(lab))
    finally:
        kill_family(pipeline)
    return {"done": len(records), "refused by the broker": refused, "sums below zero": wrapped}


def _rows(lab: Lab) -> list[dict[str, Any]]:
    """Return the traffic by API; the last row of a key is the valid one."""
    rows = map(json.loads, dict(read_topic(lab.sink.bootstrap, TRAFFIC)).values())
    return [row for row in rows if row["level"] == "api"]


def _requests(row: dict[str, Any]) -> int:
    """Return the sum of requests; None if a sum is refused."""
    return row.get("requests") or 0


def _honest_flow(lab: Lab) -> dict[str, Any]:
    for _, value in read_topic(lab.sink.bootstrap, EVENTS):
        for line in value.splitlines():
            event: dict[str, Any] = json.loads(line)
            if event["kind"] == "flow" and event["client"]["id"] == HONEST:
                return event
    raise LabError(f"no flow of {HONEST}")
