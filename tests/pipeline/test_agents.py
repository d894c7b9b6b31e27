"""What is kept of each agent, and of how many."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from kafka_probe_pipeline import source
from tests.pipeline.builders import word
from tests.pipeline.history import History

pytestmark = pytest.mark.spark


def test_of_too_many_agents_those_are_kept_that_were_heard_last(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MOST_AGENTS", 2)
    history = History(spark)
    history.batch(word("first"), word("second"))
    history.batch(word("third"), at_s=1)
    history.batch(word("first"), at_s=2)
    assert {row["agent_id"] for row in history.agents.collect()} == {"third", "first"}
