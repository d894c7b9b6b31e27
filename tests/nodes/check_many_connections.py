"""A hundred thousand connections are open when the agent starts: time until they are reported, and cost."""

from __future__ import annotations

import pytest

from tests.programs.bench.scale import Figures, with_connections

pytestmark = pytest.mark.root

CONNECTIONS = 100_000


@pytest.fixture(scope="module")
def none(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return with_connections(0, tmp_path_factory.mktemp("none"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return with_connections(CONNECTIONS, tmp_path_factory.mktemp("many"))


def test_all_are_reported_within_30_seconds_of_the_start(many: Figures) -> None:
    assert many["start_s"] <= 30
    assert many["connections"] == CONNECTIONS


def test_the_kernel_has_a_kilobyte_of_each(none: Figures, many: Figures) -> None:
    """An entry of a map takes a power of two, so a slightly larger entry would take twice as much."""
    assert 512 < (many["kernel_bytes"] - none["kernel_bytes"]) / CONNECTIONS <= 1024


def test_the_agent_has_two_kilobytes_of_each_at_most(none: Figures, many: Figures) -> None:
    assert 0 < (many["agent_bytes"] - none["agent_bytes"]) / CONNECTIONS <= 2048


def test_while_they_are_silent_the_agent_takes_no_two_percent_of_a_core(many: Figures) -> None:
    assert many["idle_cpu_percent"] < 2
