"""Buckets of latencies are those of OpenTelemetry's and of Prometheus' own libraries, so that sums can be exported."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import ExponentialHistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject, launch_gateway

from kafka_probe.events import BUCKETS_PER_DOUBLING, bucket_of

JARS = Path(__file__).parents[2] / "build" / "jars" / "prometheus-1.8.0"
PY4J = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
LONGEST_US = 2**32 - 1
SCALE = SCHEMA = int(math.log2(BUCKETS_PER_DOUBLING))
# Between the boundaries and on those that are whole numbers of microseconds: powers of two of a second.
BETWEEN_US = [int(1e6 * 2 ** ((bucket + 0.5) / BUCKETS_PER_DOUBLING)) for bucket in range(-100, 96)]
ON_US = [1e6 * 2.0**power for power in range(-6, 12)]
LATENCIES_US = [1, LONGEST_US, *BETWEEN_US, *ON_US]
BUCKETS = Counter(map(bucket_of, LATENCIES_US))


def test_a_bucket_has_the_index_that_it_has_in_opentelemetry() -> None:
    every = ExponentialBucketHistogramAggregation(max_size=len(range(min(BUCKETS), max(BUCKETS) + 1)), max_scale=SCALE)
    reader = InMemoryMetricReader(preferred_aggregation={Histogram: every})
    histogram = MeterProvider([reader], shutdown_on_exit=False).get_meter("test").create_histogram("latency", unit="s")
    for latency_us in LATENCIES_US:
        histogram.record(latency_us / 1e6)
    data = reader.get_metrics_data()
    assert data
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert isinstance(point, ExponentialHistogramDataPoint)
    assert point.scale == SCALE
    counts = dict(enumerate(point.positive.bucket_counts, point.positive.offset))
    assert {index: count for index, count in counts.items() if count} == BUCKETS


@pytest.fixture
def java() -> Iterator[JavaGateway]:
    port = launch_gateway(jarpath=str(PY4J), classpath=str(JARS / "*"), die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    yield gateway
    gateway.shutdown()


def test_a_bucket_has_the_index_after_it_in_prometheus(java: JavaGateway) -> None:
    histogram = _native_histogram(java)
    for latency_us in LATENCIES_US:
        histogram.observe(latency_us / 1e6)
    (point,) = histogram.collect().getDataPoints()
    assert point.getNativeSchema() == SCHEMA
    buckets = point.getNativeBucketsForPositiveValues()
    counts = {buckets.getBucketIndex(i): buckets.getCount(i) for i in range(buckets.size())}
    assert {index: count for index, count in counts.items() if count} == {
        bucket + 1: count for bucket, count in BUCKETS.items()
    }


def _native_histogram(java: JavaGateway) -> JavaObject:
    core = java.jvm.io.prometheus.metrics.core.metrics
    builder = core.Histogram.builder().name("latency").nativeOnly().nativeInitialSchema(SCHEMA)
    return builder.nativeMaxNumberOfBuckets(0).nativeMinZeroThreshold(0.0).nativeMaxZeroThreshold(0.0).build()
