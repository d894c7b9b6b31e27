"""Writes the archive of `make bench-inspect`, and one hour of it as the pipeline writes and compacts it.

Prints JSON: the number of frames, both layouts, where the tables are, and what to look for. It is a program of its own:
the memory of the process that starts a command would count as the command's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kafka_probe_pipeline import event_rows, frames, spark_session
from kafka_probe_pipeline.config import load
from kafka_probe_pipeline.tables import Table

ROOT = Path(__file__).parents[3]
DIRECTORY = ROOT / "build" / "bench-inspect"
FRAMES = int(os.environ.get("FRAMES", "100000000"))
CONNECTIONS, CLIENTS, HOURS, RUNS = 20_000, 500, 24, 10
HOURS_OPEN = 6  # of each connection
MICRO_BATCHES = 120  # of an hour before its compaction
DAY = datetime(2026, 1, 5, tzinfo=UTC)
FILE_BYTES = load({}).archive_file_bytes
_HOUR_US = 3600 * 10**6
_DATA_BYTES, _UNIQUE_BYTES, _PREFIXES = 44, 12, 4096  # of a frame; its last bytes differ, the others repeat
_AS_USUAL = WriterProperties()

Columns = Mapping[str, Any]


class Fleet:
    """The connections of the archive, each with the hour of its open, both addresses and its client id."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.flow_ids = [self.random.bytes(16).hex() for _ in range(CONNECTIONS)]
        self.opened = self.random.integers(0, HOURS - HOURS_OPEN + 1, CONNECTIONS)
        self.clients = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:{32768 + n % 20000}" for n in range(CONNECTIONS)]
        self.brokers = [f"10.200.0.{n % 3}:9092" for n in range(CONNECTIONS)]
        self.client_ids = [f"client-{n % CLIENTS}" for n in range(CONNECTIONS)]
        self._prefixes = self.random.integers(0, 256, (_PREFIXES, _DATA_BYTES - _UNIQUE_BYTES), np.uint8)

    def open_in(self, hour: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the connections that are open in an hour, by their flow ids."""
        numbers = np.flatnonzero((self.opened <= hour) & (hour < self.opened + HOURS_OPEN))
        return np.array(sorted(numbers.tolist(), key=self.flow_ids.__getitem__))

    def frames_of(self, hour: int, count: int) -> pa.Table:
        """Return the rows of an hour, sorted by flow and time."""
        random, numbers = self.random, self.open_in(hour)
        weights = random.lognormal(0, 1, len(numbers))
        flow = np.sort(random.choice(len(numbers), count, p=weights / weights.sum()))
        received_us = _us(DAY) + hour * _HOUR_US + random.integers(0, _HOUR_US, count)
        received_us = received_us[np.lexsort((received_us, flow))]
        number = np.arange(count) - np.searchsorted(flow, flow)  # of the frame in its connection
        response, data = number & 1, np.empty((count, _DATA_BYTES), np.uint8)
        data[:, :-_UNIQUE_BYTES] = self._prefixes[random.integers(0, _PREFIXES, count)]
        data[:, -_UNIQUE_BYTES:] = random.integers(0, 256, (count, _UNIQUE_BYTES), np.uint8)
        offsets = pa.array(np.arange(count + 1) * _DATA_BYTES, pa.int32()).buffers()[1]
        names = {
            "node": [f"node-{n % 50}" for n in numbers],
            "agent_id": [f"{n % 50:032x}" for n in numbers],
            "conn_id": [f"{n:016x}" for n in numbers],
            "flow_id": [self.flow_ids[n] for n in numbers],
        }
        return _table(
            frames.SCHEMA,
            count,
            {
                **{name: pa.DictionaryArray.from_arrays(flow, of).cast(pa.string()) for name, of in names.items()},
                "ts": received_us - random.integers(1000, 1000000, count),
                "received_ts": received_us,
                "seq": np.arange(count) // 512,
                "copy_rules": pa.repeat("0123456789abcdef", count),
                "side": pa.repeat("client", count),
                "monotonic_ns": received_us * 1000,
                "tcp_seq": random.integers(0, 1 << 32, count),
                "frame_bytes": random.integers(60, 5000, count),
                "correlation_id": number // 2,
                "latency_us": np.where(response, random.integers(100, 500000, count), 0),
                "api_key": random.choice([0, 1, 3, 8, 9, 10, 12], count),
                "api_version": pa.repeat(12, count),
                "flags": response,
                "part": pa.repeat(0, count),
                "data": pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)]),
                "hour": pa.repeat(hour, count),
            },
        )

    def ends(self, schema: StructType, hours: Sequence[npt.NDArray[np.int64]]) -> pa.Table:
        """Return a row of each end of each connection per hour; the hours have the numbers of the connections."""
        numbers = np.concatenate(hours)
        hour = np.repeat(np.arange(len(hours)), [*map(len, hours)])
        both = np.repeat(numbers, 2)
        client = np.arange(len(both)) % 2 == 0
        us = _us(DAY) + np.repeat(hour, 2) * _HOUR_US + self.random.integers(0, _HOUR_US, len(both))
        here = [self.clients[n] if at else self.brokers[n] for n, at in zip(both, client, strict=True)]
        there = [self.brokers[n] if at else self.clients[n] for n, at in zip(both, client, strict=True)]
        return _table(
            schema,
            len(both),
            {
                "node": [f"node-{n % 50}" if at else f"broker-{n % 3}" for n, at in zip(both, client, strict=True)],
                "agent_id": [f"{n % 50 if at else 50 + n % 3:032x}" for n, at in zip(both, client, strict=True)],
                "local": here,
                "peer": there,
                "side": np.where(client, "client", "server"),
                "flow_id": [self.flow_ids[n] for n in both],
                "conn_id": [f"{n:016x}" for n in both],
                "workload": [{"pid": int(n), "comm": "java", "pod": f"pod-{n % CLIENTS}"} for n in both],
                "client": [{"id": self.client_ids[n]} for n in both],
                "ts": us,
                "received_ts": us,
            },
        )

    def values(self) -> dict[str, list[str]]:
        """Return what to look for: some values for each condition."""
        chosen = self.random.choice(CONNECTIONS, RUNS, replace=False)
        values = {"flow": self.flow_ids, "address": self.clients, "client": self.client_ids}
        return {flag: [each[n] for n in chosen] for flag, each in values.items()}


def main() -> None:
    """Write the tables and print what they are."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    fleet = Fleet()
    per_hour = FRAMES // HOURS
    compacted = compacted_hour(fleet.frames_of(0, per_hour))
    row_groups = WriterProperties(compression="SNAPPY", max_row_group_size=compacted["rows_per_row_group"])
    for hour in range(HOURS):
        _write("frames", fleet.frames_of(hour, per_hour), ["date", frames.HOUR], row_groups)
    _write("opens", fleet.ends(event_rows.OPENS, [fleet.open_in(hour) for hour in range(HOURS)]), ["date"])
    last_hour = fleet.opened + HOURS_OPEN - 1
    closed = [np.flatnonzero(last_hour == hour) for hour in range(HOURS)]
    _write("closes", fleet.ends(event_rows.CLOSES, closed), ["date"])
    layouts = {"compacted by the pipeline": compacted, "written": layout(DIRECTORY / "frames", per_hour)}
    period = (DAY.isoformat(), (DAY + timedelta(days=1)).isoformat())
    written = {"frames": per_hour * HOURS, "layout": layouts}
    print(json.dumps({"written": written, "tables": str(DIRECTORY), "period": period, "values": fleet.values()}))


def compacted_hour(rows: pa.Table) -> dict[str, Any]:
    """Write an hour as the pipeline's micro-batches do, compact it as the pipeline does, and return its layout."""
    config = load({"output": str(DIRECTORY / "hour")})
    order = np.random.default_rng(8).permutation(MICRO_BATCHES)
    for batch in order:
        part = rows.filter(pa.array(np.arange(len(rows)) % MICRO_BATCHES == batch))
        _write("hour/frames", part, ["date", frames.HOUR])
    spark = spark_session.start()
    try:
        Table(spark, config, "frames").merge_hours(DAY + timedelta(days=1), FILE_BYTES)
    finally:
        spark_session.stop(spark)
    return layout(DIRECTORY / "hour" / "frames", len(rows))


def layout(table: Path, rows_per_hour: int) -> dict[str, Any]:
    """Return files, bytes per frame and rows per row group of the largest hour, and how many files share flows."""
    actions = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True)).to_pylist()
    by_hour: dict[int, list[Mapping[str, Any]]] = {}
    for action in actions:
        by_hour.setdefault(action["partition.hour"], []).append(action)
    overlaps = 0
    for files in by_hour.values():
        ranges = sorted((file["min.flow_id"], file["max.flow_id"]) for file in files)
        overlaps += sum(ended > begun for (_, ended), (begun, _) in pairwise(ranges))
    most = max(by_hour.values(), key=len)
    row_groups = sum(pq.read_metadata(table / unquote(file["path"])).num_row_groups for file in most)
    return {
        "files": len(most),
        "bytes_per_frame": round(sum(file["size_bytes"] for file in most) / rows_per_hour, 1),
        "rows_per_row_group": rows_per_hour // row_groups,
        "overlaps": overlaps,
    }


def _write(name: str, rows: pa.Table, partitions: Sequence[str], properties: WriterProperties = _AS_USUAL) -> None:
    columns = "ts,flow_id,conn_id,received_ts" + (",api_key" if name.endswith("frames") else ",local,peer")
    write_deltalake(
        str(DIRECTORY / name),
        rows,
        partition_by=[*partitions],
        mode="append",
        target_file_size=FILE_BYTES,
        writer_properties=properties,
        configuration={"delta.dataSkippingStatsColumns": columns},
    )


def _table(schema: StructType, count: int, columns: Columns) -> pa.Table:
    """Return a table of the pipeline, with `date` and `batch_id`; columns that are not given are null."""
    fields = [pa.field("date", pa.date32()), pa.field("batch_id", pa.int64()), *to_arrow_schema(schema)]
    given = {"date": pa.repeat(DAY.date(), count), "batch_id": pa.repeat(0, count), **columns}
    arrays = [
        pa.chunked_array([pa.array(given[one.name])]).cast(one.type) if one.name in given else pa.nulls(count, one.type)
        for one in fields
    ]
    return pa.table(arrays, schema=pa.schema(fields))


def _us(time_: datetime) -> int:
    return int(time_.timestamp()) * 10**6


if __name__ == "__main__":
    main()
