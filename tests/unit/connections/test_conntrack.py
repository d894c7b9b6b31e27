"""Connection tracking needs a package that most agents do without, and is asked a bounded number of times."""

from __future__ import annotations

import sys
from contextlib import closing

import pytest

from kafka_probe.connections.conntrack import ASKED_AT_ONCE, Conntrack
from kafka_probe.connections.identity import Identity
from kafka_probe.errors import StartError
from tests.lab.network import Namespace


def test_without_its_package_the_agent_does_not_start_and_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with pytest.raises(StartError, match=r"pip install '\.\[conntrack\]'"):
        Conntrack()


@pytest.mark.root
def test_connections_beyond_a_thousand_at_once_are_not_looked_up_and_counted() -> None:
    def opened(count: int) -> list[Identity]:
        ports = range(1, count + 1)
        ends = [(f"10.0.0.1:{port}", "10.0.0.2:9092") for port in ports]
        return [Identity(1, False, True, "0" * 16, *pair, "", 1, None, None) for pair in ends]

    nat = Conntrack()
    with closing(Namespace()) as apart, apart.inside():
        for count, not_asked in ((ASKED_AT_ONCE, 0), (ASKED_AT_ONCE + 3, 3)):
            assert nat.translations(opened(count)) == [None] * count
            assert nat.not_asked == not_asked
