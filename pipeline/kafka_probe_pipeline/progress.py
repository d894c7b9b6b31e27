"""The progress of the queries: logged once a minute, and as metrics for Prometheus.

Times are of Kafka: a query is as many seconds behind as its newest event is old. No label has a name that a stranger
chooses.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import prometheus_client as prometheus
from pyspark.sql.streaming.query import StreamingQuery

from kafka_probe.errors import StartError

log = logging.getLogger("kafka_probe_pipeline")

LOG_EVERY_S = 60.0
PREFIX = "kafka_probe_pipeline_"
_LABELS: dict[str, tuple[str, ...]] = {
    "malformed_lines_total": ("reason",),
    "overflowed_rows_total": (),
    "repeated_events_total": (),
    "verdicts_total": ("cause",),
    "storms_active": (),
}
# Name: type and meaning.
METRICS = {
    "events_total": ("counter", "events that the query has processed"),
    "batches_total": ("counter", "micro-batches that the query has processed"),
    "batch_seconds_total": ("counter", "seconds that the micro-batches took"),
    "behind_seconds": ("gauge", "age of the newest event that the query has processed, when it had processed it"),
    "behind_records": ("gauge", "records in Kafka that the query has not read, in the partition with most of them"),
    "malformed_lines_total": ("counter", "lines that are not valid events, by reason"),
    "overflowed_rows_total": ("counter", "rows of traffic with a sum of more than 63 bits, which is null for readers"),
    "repeated_events_total": ("counter", "flows and requests left out because their agent had sent their seq before"),
    "verdicts_total": ("counter", "verdicts on closed connections, by cause"),
    "storms_active": ("gauge", "storms that are not over"),
}


def labels(metric: str) -> tuple[str, ...]:
    """Return the labels of one of `METRICS`."""
    return _LABELS.get(metric, ("query",))


@dataclass(slots=True)
class _QueryProgress:
    events: int = 0
    behind_s: float = 0
    behind_records: int = 0


class Progress:
    """The progress of all queries. Queries report it from their own threads."""

    def __init__(self) -> None:
        self.malformed = Counter[str]()
        self._repeated = 0
        self._registry = prometheus.CollectorRegistry()
        kinds = {"counter": prometheus.Counter, "gauge": prometheus.Gauge}
        self._metrics = {
            name: kinds[kind](PREFIX + name, meaning, labels(name), registry=self._registry)
            for name, (kind, meaning) in METRICS.items()
        }
        self._lock = Lock()
        self._queries: dict[str, _QueryProgress] = {}
        self._logged_s = time.monotonic()
        self._logged_malformed = self._logged_repeated = 0

    def serve(self, address: str) -> None:
        """Serve `/metrics` at host:port, from a thread of its own.

        Raises:
            StartError: the address cannot be used.
        """
        host, _, port = address.rpartition(":")
        try:
            prometheus.start_http_server(int(port), host.strip("[]"), self._registry)
        except OSError as error:
            raise StartError(f"--listen {address} cannot be used: {error.strerror}.") from None

    def batch(self, query: str, events: int, newest_us: int | None, began_s: float) -> None:
        """Count a micro-batch. newest_us: Kafka's time of its newest event, if any; began_s: its start, monotonic."""
        self._metrics["events_total"].labels(query).inc(events)
        self._metrics["batches_total"].labels(query).inc()
        self._metrics["batch_seconds_total"].labels(query).inc(time.monotonic() - began_s)
        with self._lock:
            known = self._queries.setdefault(query, _QueryProgress())
            known.events += events
            if newest_us:
                known.behind_s = max(0.0, time.time() - newest_us / 1e6)
                self._metrics["behind_seconds"].labels(query).set(known.behind_s)

    def lines(self, malformed: Mapping[str, int]) -> None:
        """Count malformed lines by reason."""
        self.malformed.update(malformed)
        for reason, count in malformed.items():
            self._metrics["malformed_lines_total"].labels(reason).inc(count)

    def repeated(self, events: int) -> None:
        """Count events that were left out because their agent had sent their `seq` before."""
        self._repeated += events
        self._metrics["repeated_events_total"].inc(events)

    def overflowed(self, rows: int) -> None:
        """Count rows of traffic with a sum that overflowed."""
        self._metrics["overflowed_rows_total"].inc(rows)
        if rows:
            log.warning("%d rows of traffic have a sum of more than 63 bits: null. Check for forged events.", rows)

    def verdicts(self, causes: Mapping[str, int]) -> None:
        """Count verdicts by cause."""
        for cause, count in causes.items():
            self._metrics["verdicts_total"].labels(cause).inc(count)

    def storms(self, active: int) -> None:
        """Set the number of storms that are not over."""
        self._metrics["storms_active"].set(active)

    def look(self, queries: Sequence[StreamingQuery]) -> None:
        """Read how many records the queries are behind, and log once a minute."""
        for query in queries:
            behind = _behind(query)
            if behind is not None:
                self._metrics["behind_records"].labels(query.name).set(behind)
                with self._lock:
                    self._queries.setdefault(query.name, _QueryProgress()).behind_records = behind
        passed_s = time.monotonic() - self._logged_s
        if passed_s >= LOG_EVERY_S:
            self._log(passed_s)

    def _log(self, passed_s: float) -> None:
        self._logged_s += passed_s
        with self._lock:
            for name, query in sorted(self._queries.items()):
                log.info(
                    "Query %s processed %.1f events/s and is %.0f s and %d records behind.",
                    name,
                    query.events / passed_s,
                    query.behind_s,
                    query.behind_records,
                )
                query.events = 0
        if (total := self.malformed.total()) > self._logged_malformed:
            log.info("%d lines since the start were not events%s.", total, listed("malformed", self.malformed))
            self._logged_malformed = total
        if self._repeated > self._logged_repeated:
            log.info("%d flows and requests since the start were left out as repeated.", self._repeated)
            self._logged_repeated = self._repeated


def _behind(query: StreamingQuery) -> int | None:
    """Return how many records a query is behind by Spark's count, None before its first micro-batch."""
    progress = query.lastProgress
    sources = progress["sources"] if progress else []
    behind = [source["metrics"].get("maxOffsetsBehindLatest") for source in sources if source["metrics"]]
    return int(float(behind[0])) if behind and behind[0] is not None else None


def listed(what: str, names: Counter[str] | tuple[str, ...]) -> str:
    """Return `; what: a, b` or `; what: a 3, b 1`; nothing if there is none."""
    if not names:
        return ""
    items = [f"{name} {count}" for name, count in names.items()] if isinstance(names, dict) else names
    return f"; {what}: {', '.join(items)}"
