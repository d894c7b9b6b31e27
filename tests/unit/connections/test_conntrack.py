"""Connection tracking needs a package that most agents do without."""

from __future__ import annotations

import sys

import pytest

from kafka_probe.connections.conntrack import Conntrack
from kafka_probe.errors import StartError


def test_without_its_package_the_agent_does_not_start_and_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with pytest.raises(StartError, match=r"pip install '\.\[conntrack\]'"):
        Conntrack()
