"""The metrics of a view as families of prometheus_client, built at every call of `collect`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from kafka_probe.server.metrics import METRICS, PREFIX
from kafka_probe.server.traffic import BOUNDS_S
from kafka_probe.server.view import View

_BOUNDS = [*map(str, BOUNDS_S), "+Inf"]
_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class Collector:
    """A collector of prometheus_client for all metrics of a view."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        for metric in METRICS:
            name = PREFIX + metric.name
            if metric.kind == "histogram":
                histogram = HistogramMetricFamily(name, metric.doc, labels=metric.labels)
                for labels, value in metric.read(self._view):
                    buckets = zip(_BOUNDS, accumulate(value.counts), strict=True)
                    histogram.add_metric(labels, list(buckets), value.sum_s)
                yield histogram
            else:
                family = _FAMILIES[metric.kind](name, metric.doc, labels=metric.labels)
                for labels, value in metric.read(self._view):
                    family.add_metric(labels, value)
                yield family
