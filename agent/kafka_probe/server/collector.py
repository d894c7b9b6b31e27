"""Families of prometheus_client, made of rows of the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from kafka_probe.server.metrics import PREFIX, Metric, MetricSamples
from kafka_probe.server.traffic import BOUNDS_S

_BOUNDS = [*map(str, BOUNDS_S), "+Inf"]
_FAMILIES: dict[str, type[CounterMetricFamily | GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


class Collector:
    """A collector of prometheus_client for some families."""

    def __init__(self, *families: Family) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def family(metric: Metric, rows: MetricSamples) -> Family:
    """Return the family of a metric with these of its rows."""
    name = PREFIX + metric.name
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.doc, labels=metric.labels)
        for labels, value in rows:
            buckets = zip(_BOUNDS, accumulate(value.counts), strict=True)
            histogram.add_metric(labels, list(buckets), value.sum_s)
        return histogram
    numbers = _FAMILIES[metric.kind](name, metric.doc, labels=metric.labels)
    for labels, value in rows:
        numbers.add_metric(labels, value)
    return numbers
