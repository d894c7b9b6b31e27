"""Runs the soak for two minutes, with every failure, and compares its accounts.

Memory is flat only once the recorder is full, which takes longer: `make soak MINUTES=45` compares it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.programs.soak.endurance import endure

pytestmark = [pytest.mark.root, pytest.mark.broker, pytest.mark.spark]

MINUTES = 2


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return endure(MINUTES, tmp_path_factory.mktemp("soak"))


def test_every_request_and_every_end_is_accounted_for(result: dict[str, Any]) -> None:
    assert result["examples"] == [], "\n".join(result["examples"])
    assert result["unexplained"] == 0
    assert result["agents"] == 3
    assert result["pages_of_their_servers"] > 0
    assert result["requests_while_no_agent_watched"] > 0
    assert result["ends"] > 0
