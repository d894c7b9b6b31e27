"""`idle` beside a real broker knows who is silent, and whose sockets probe. Rows stand in for a pipeline's tables."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from kafka_probe_console.idle_command import idle
from tests.builders.tables import write_tables
from tests.lab.answers import answered
from tests.lab.broker import Broker
from tests.lab.processes import wait_until
from tests.lab.product import Watched

pytestmark = [pytest.mark.root, pytest.mark.broker]

NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
PROBES = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1))


def client(broker: Broker, client_id: str, *options: tuple[int, int, int]) -> Any:
    """Return a client that has asked for the topics; it closes itself with `closing`."""
    of = KafkaAdminClient(bootstrap_servers=broker.bootstrap, client_id=client_id, socket_options=[NODELAY, *options])
    of.list_topics()
    return closing(of)


def test_a_limit_would_cut_the_silent_connections_that_nothing_probes(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        watched = Watched(tmp_path, broker.port, "--open-interval-s", "1")
        with watched.agent, client(broker, "silent"), client(broker, "probed", *PROBES), client(broker, "busy") as busy:

            def rows() -> dict[str, dict[str, Any]]:
                busy.list_topics()
                write_tables(tmp_path / "tables", watched.events(kind="open") + watched.events(kind="close"), [])
                return {row["client"]: row for row in answered(idle, tmp_path / "tables", "--limit", "3s")}

            def are_silent(found: dict[str, dict[str, Any]]) -> bool:
                return all((found.get(name, {}).get("silent_s") or 0) > 3 for name in ("silent", "probed"))

            watched.wait_for(12, "both ends of three connections to be reported again", kind="open")
            wait_until(lambda: are_silent(rows()), "the silence to be reported", timeout_s=60)
            found = rows()
    silent, probed, busy_row = (found[name] for name in ("silent", "probed", "busy"))
    assert (silent["cut"], silent["saved"], silent["keepalive"]) == (silent["open"], 0, "too late")  # the broker's
    assert (probed["cut"], probed["saved"], probed["keepalive"]) == (0, probed["open"], "ok")
    assert busy_row["cut"] < busy_row["open"]
    assert silent["longest_s"] >= silent["silent_s"]
    assert silent["workload"] is not None
