"""The command `follow` beside a real broker: it shows all exchanges of kafka-python's clients, seen at either end."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.lab.broker import Broker
from tests.lab.following import FETCHED, documented, exchanges, following, load, wait_for_requests, without_numbers
from tests.lab.tcpdump import Capture
from tests.lab.topics import create_topics
from tests.lab.walker import walk

pytestmark = [pytest.mark.root, pytest.mark.broker]


def test_it_shows_every_request_with_its_answer_at_either_end(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        create_topics(broker.bootstrap, ["load"], partitions=1)
        with (
            following(tmp_path / "client", broker.port, "client") as client,
            following(tmp_path / "server", broker.port, "server") as server,
        ):
            with Capture(tmp_path / "lo.pcap", broker.port) as capture:
                load(broker.bootstrap)
                capture.stop()
            wire = Counter(
                {
                    (name, api, version): count
                    for (api, version, name), count in walk(capture.file, broker.port).requests.items()
                    if (name or "").startswith("load-")
                }
            )
            for output in (client, server):
                wait_for_requests(output, wire.total())
    for output in (client, server):
        assert exchanges(output.read_text()) == (wire, wire.total())
    text = client.read_text()
    assert "load-producer (kafka-python " in text
    assert FETCHED.search(text), text
    assert "JoinGroup" in text
    assert without_numbers(documented("python")) - without_numbers(text) == set()
    assert "closed by the client (fin)" in text
    assert "closed by the client (fin)" in server.read_text()
    hidden = re.search(
        r"Fetch .*\n.*response after .*load\[0\]: .* (\d+) bytes of records, records not counted", server.read_text()
    )
    assert hidden, server.read_text()
