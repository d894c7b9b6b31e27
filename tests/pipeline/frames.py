"""Compares data frames. That of `pyspark.testing` imports pandas-on-Spark where pandas is installed, which warns."""

from __future__ import annotations

from pyspark.sql import DataFrame


def assert_same(found: DataFrame, expected: DataFrame) -> None:
    """Assert that both have the same columns, types and rows, in any order."""
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))
