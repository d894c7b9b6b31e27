"""What the product says of the connections that ended: the only place that knows how its verdicts are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaProducer

from tests.lab.broker import Broker
from tests.lab.network import Connection
from tests.lab.product import EVENTS, run_pipeline
from tests.lab.topics import create_topics, read_topic

VERDICTS = "kafka-probe.verdicts"
_LINES = 200  # of NDJSON in a record: far below a broker's limit


@dataclass(frozen=True, slots=True)
class Answer:
    """The product's word on a connection; `connection` is None if nobody watched the client's end."""

    verdict: str
    flow_id: str | None
    connection: Connection | None


def answers(outputs: Iterable[Path], directory: Path) -> list[Answer]:
    """What the pipeline concludes from what these agents wrote, at a broker of its own in a fresh directory."""
    with Broker(directory / "broker") as broker:
        create_topics(broker.bootstrap, [EVENTS], partitions=4)
        _feed(broker.bootstrap, outputs)
        run_pipeline(broker.bootstrap, directory / "pipeline")
        return [_read(value) for _, value in read_topic(broker.bootstrap, VERDICTS)]


def _read(value: bytes) -> Answer:
    row = json.loads(value)
    local, peer = row.get("connecting_local"), row.get("connecting_peer")
    return Answer(row["verdict"], row.get("flow_id"), Connection(local, peer) if local else None)


def _feed(bootstrap: str, outputs: Iterable[Path]) -> None:
    """Write what agents wrote to files as they write it to the topic: many lines to a record, by the agent's id."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="lab")
    for output in outputs:
        lines = output.read_bytes().splitlines()
        for part in _parts(lines):
            producer.send(EVENTS, key=json.loads(part[0])["agent_id"].encode(), value=b"\n".join(part))
    producer.flush()
    producer.close()


def _parts(lines: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (lines[start : start + _LINES] for start in range(0, len(lines), _LINES))
