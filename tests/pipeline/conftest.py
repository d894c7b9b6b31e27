"""Provides one Spark session and one real broker for all tests of the pipeline."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kafka_probe_pipeline import spark_session
from tests.lab.broker import Broker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark"):
            # py4j leaves its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    spark = spark_session.for_few_rows(spark_session.start())
    yield spark
    spark.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def _without_persisted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove what a test persisted: Spark compares each later plan with it."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").catalog.clearCache()


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker
