"""The archive's table has every sample that an agent sent once, also after its hour was merged.

Part of `make test-long`: it writes and merges hundreds of files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe_pipeline import tables
from kafka_probe_pipeline.maintenance import Maintenance
from tests.builders.fed_agent import Fed, samples_of
from tests.builders.samples import opened, request, response, stream
from tests.lab.broker import Broker
from tests.lab.pipeline_job import Run

pytestmark = pytest.mark.spark


def digest(samples: Iterable[Any]) -> str:
    """Return a hash of the sequence of samples, each a dictionary or a row."""
    names = ("flow_id", "conn_id", "monotonic_ns", "correlation_id", "tcp_seq", "flags", "part", "frame_bytes", "data")
    rows = sorted(tuple(bytes(one[n]) if n == "data" else one[n] for n in names) for one in samples)
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@pytest.mark.broker
def test_the_sequence_of_samples_is_what_the_agent_sent_also_after_hours_were_merged(
    broker: Broker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tables._SORTED_BY_FLOW, "parquet.block.size", "10000")
    fed = Fed(archive={"archive": "all"})
    fed.see(*(opened(conn, rx_base=conn, tx_base=2) for conn in range(1, 4)))
    for number in range(300):
        samples = stream(request(ApiKey.METADATA, 12, number % 3 + 1), response(ApiKey.METADATA, 12, number % 3 + 1))
        samples["correlation_id"], samples["ts_ns"] = number, number * 10**6
        fed.see(samples)
    sent = fed.archive_sink.events
    run = Run(broker, tmp_path, archive=True)
    parts = iter(sent)
    while part := [*islice(parts, 150)]:
        run.send_frames(*part)
        run.once(spark)
    run.send_lines("torn\n", topic=run.frames)
    run.once(spark)
    expected = digest(sample for event in sent for sample in samples_of(event))
    assert digest(run.table(spark, "frames").collect()) == expected
    assert run.progress.malformed == {"not a JSON object": 1}

    path = str(run.output / "frames")
    before = len(DeltaTable(path).file_uris())
    Maintenance(spark, run.config).run(datetime.now(UTC))
    assert len(DeltaTable(path).file_uris()) == before, "an hour that is not over is left as it is"
    Maintenance(spark, run.config).run(datetime.now(UTC) + timedelta(hours=1))
    files = DeltaTable(path).file_uris()
    assert len(files) < before
    assert len(files) == len({file.rpartition("/")[0] for file in files}), "one file per hour"
    row_groups = pq.read_metadata(files[0].removeprefix("file://"))
    assert row_groups.num_row_groups > 1, "readers leave out row groups by their range of flows"
    merged = spark.read.parquet(files[0]).select("flow_id", "monotonic_ns").collect()
    assert [row["flow_id"] for row in merged] == sorted(row["flow_id"] for row in merged)
    assert digest(run.table(spark, "frames").collect()) == expected
    Maintenance(spark, run.config).run(datetime.now(UTC) + timedelta(hours=1))
    assert DeltaTable(path).file_uris() == files, "merged hours are left as they are"
