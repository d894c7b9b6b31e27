"""Gives each closed connection a verdict: the cause of its close, with the evidence as a sentence.

Spark keeps the connections, adds what a verdict needs beside the two ends, and has `judging` run on its executors, for
each connection on its own. This module never reads or writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe.errors import StartError
from kafka_probe_pipeline.config import PipelineConfig
from kafka_probe_pipeline.connections import CLOSE, END, SIDES, VERDICT
from kafka_probe_pipeline.connections import SCHEMA as CONNECTION
from kafka_probe_pipeline.errors import last_cause
from kafka_probe_pipeline.evidence import END_FIELDS, SECOND_US, AgentProgress, Limits
from kafka_probe_pipeline.judging import Judge, together
from kafka_probe_pipeline.source import Clock, struct_of

# Connections that were judged within this time are compared with those that are judged now: connections that were
# closed together may be judged in different batches.
_COMPARED_US = 30 * SECOND_US
# Columns of an agent's state that show which of its reports are complete.
_PROGRESS = AgentProgress._fields
_ADDRESSES = ["agent_id", "local", "peer"]
_PROCESS = ["client.agent_id", "client.workload.pid", "client.workload.start_time"]
_TOGETHER = struct_of({"key": T.StringType(), "least": T.LongType(), "greatest": T.LongType()})

# Times of `connections.END` that are timestamps in the table.
_TIMES = {
    "opened_us": "opened_ts",
    "last_seen_us": "last_seen_ts",
    "closing_us": "closing_ts",
    "ended_us": "ended_ts",
}


def _with_timestamps(of: T.StructType) -> T.StructType:
    """Return the type of rows whose times are timestamps."""

    def field(one: T.StructField) -> T.StructField:
        if one.name in _TIMES:
            return T.StructField(_TIMES[one.name], T.TimestampType())
        return T.StructField(one.name, _with_timestamps(CLOSE) if one.name == "close" else one.dataType)

    return T.StructType([*map(field, of)])


CLOSE_ROW, END_ROW = _with_timestamps(CLOSE), _with_timestamps(END)
"""Types of `client.close` and `client` of a row of the table, and of the same of the server."""
# A row of the table. `ts`: when the connection was closed, by the clock of the end `by`; `judged_ts` is of Kafka's.
SCHEMA = struct_of(
    {
        **dict.fromkeys(("ts", "judged_ts"), T.TimestampType()),
        **{name: VERDICT[name].dataType for name in ("cause", "evidence", "by", "idle_us", "refused_request_bytes")},
        **{field.name: field.dataType for field in CONNECTION if field.name not in ("verdict", *SIDES)},
        **dict.fromkeys(SIDES, END_ROW),
    }
)


def require_executors(spark: SparkSession) -> None:
    """Raise StartError unless executors can run this package, which they need for verdicts."""
    try:
        spark.range(1).select(_together(0, F.array(F.struct(F.lit(0), F.lit(0), F.lit(""))))).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise StartError(
            f"Executors cannot run this job's Python code: {last_cause(error)}. They need the driver's version of "
            "Python: set spark.pyspark.python to their interpreter, and spark.pyspark.driver.python to the driver's."
        ) from None


def verdicts(connections: DataFrame, agents: DataFrame, clock: Clock, config: PipelineConfig) -> DataFrame | None:
    """Return the connections without a verdict, each with the one that can be given now; None if there are none.

    To be persisted: Spark may move a filter on `verdict` to where it is made, and judge twice.
    """
    waits = F.col("verdict").isNull()
    if connections.where(waits).isEmpty():
        return None
    recent = F.col("verdict.judged_us") > clock.now_us - _COMPARED_US - config.closed_together * SECOND_US
    judge = _udf(Judge(Limits.of(config), clock.batch_id, clock.now_us), VERDICT)
    return (
        connections.where(waits)
        .transform(with_reports, agents)
        .transform(with_silences, connections.where(waits | recent), config.closed_together)
        .withColumn("verdict", judge(*(f"{side}_end" for side in SIDES), "silences"))
        .select(*CONNECTION.names)
    )


def with_silences(connections: DataFrame, compared: DataFrame, within_s: float) -> DataFrame:
    """Add `silences`: `least` and `greatest` silence of the connections that the client's process closed together, µs.

    Both are the connection's own silence if `compared` has no other that the process closed within that time.
    """
    close, pid = F.col("client.close"), F.col("client.workload.pid")
    by_reset = (close["how"] == "rst_sent") & ~close["closed_by"].eqNullSafe(F.lit("peer"))
    closed_us = F.coalesce(close["closing_us"], close["ended_us"], F.lit(0))
    silence_us = F.coalesce(close["silence_us"], close["idle_us"], close["age_us"], F.lit(0))
    itself = compared.where(((close["closed_by"] == "local") | by_reset) & pid.isNotNull())
    # A window of Spark would look at all closes of a process for each of them.
    of_processes = (
        itself.select(*_PROCESS, F.struct(closed_us, silence_us, "key").alias("close"))
        .groupBy("agent_id", "pid", "start_time")
        .agg(F.sort_array(F.collect_list("close")).alias("closes"))
        .where(F.size("closes") > 1)
        .select(F.explode(_together(within_s, F.col("closes"))).alias("one"))
        .select(F.col("one.key").alias("key"), F.struct("one.least", "one.greatest").alias("of_process"))
    )
    own = F.struct(silence_us.alias("least"), silence_us.alias("greatest"))
    return (
        connections.join(of_processes, "key", "left")
        .withColumn("silences", F.coalesce("of_process", own))
        .drop("of_process")
    )


def _together(within_s: float, closes: Column) -> Column:
    return _udf(partial(together, round(within_s * SECOND_US)), T.ArrayType(_TOGETHER))(closes)


def _udf(function: Callable[..., Any], returned: T.DataType) -> Callable[..., Column]:
    """Return a function of columns. Arrow would need packages on the executors."""
    return F.udf(function, returned, useArrow=False)


def with_reports(connections: DataFrame, agents: DataFrame) -> DataFrame:
    """Add `client_end` and `server_end`: structs of `known`, `agent` and `reset_us`, see `evidence.End`."""
    progress = agents.select("agent_id", F.struct(*(F.coalesce(each, F.lit(0)).alias(each) for each in _PROGRESS)))
    ends = connections.select(F.explode(F.array(*SIDES)).alias("end")).select("end.*").select(_ADDRESSES)
    resets = agents.select("agent_id", F.explode("resets").alias("reset")).select("agent_id", "reset.*")
    # A host that is scanned sends resets without end.
    last = resets.join(ends, _ADDRESSES, "left_semi").groupBy(_ADDRESSES).agg(F.max("ts"))
    for side in SIDES:
        of_side = progress.toDF(f"{side}_agent_id", f"{side}_agent")
        resets_of_side = last.toDF(*(f"{side}_reset_{name}" for name in (*_ADDRESSES, "us")))
        same_agent = F.col(f"{side}.agent_id") == F.col(f"{side}_agent_id")
        same_end = [F.col(f"{side}.{name}") == F.col(f"{side}_reset_{name}") for name in _ADDRESSES]
        connections = connections.join(F.broadcast(of_side), same_agent, "left").join(resets_of_side, same_end, "left")
    return connections.withColumns({f"{side}_end": _end(side) for side in SIDES})


def _end(side: str) -> Column:
    known = F.when(F.col(side).isNotNull(), F.struct(*(f"{side}.{name}" for name in END_FIELDS)))
    agent, reset_us = F.col(f"{side}_agent"), F.col(f"{side}_reset_us")
    return F.struct(known.alias("known"), agent.alias("agent"), reset_us.alias("reset_us"))


def given(connections: DataFrame, batch_id: int) -> DataFrame:
    """Return the verdicts of one batch, with their connections: rows of the table of verdicts."""
    return (
        connections.where(F.col("verdict.batch_id") == batch_id)
        .select("verdict.*", *(name for name in connections.columns if name != "verdict"))
        .withColumns({"ts": F.timestamp_micros("closed_us"), "judged_ts": F.timestamp_micros("judged_us")})
        .transform(with_timestamps)
        .select(*SCHEMA.names)
    )


def with_timestamps(connections: DataFrame) -> DataFrame:
    """Return the connections with ends whose times are timestamps, see `END_ROW`."""
    return connections.withColumns({side: F.expr(_timestamps_of(side, END)) for side in SIDES})


def _timestamps_of(row: str, of: T.StructType) -> str:
    """Return in SQL a row whose times are timestamps: all columns then take one call to the JVM."""

    def column(name: str) -> str:
        if name in _TIMES:
            return f"timestamp_micros({row}.{name}) AS {_TIMES[name]}"
        return f"{_timestamps_of(f'{row}.close', CLOSE) if name == 'close' else f'{row}.{name}'} AS {name}"

    return f"if({row} IS NULL, NULL, struct({', '.join(map(column, of.names))}))"


def counted(connections: DataFrame, clock: Clock, config: PipelineConfig) -> tuple[Counter[str], Counter[str]]:
    """Return how many verdicts of each cause are of this batch, and how many of the last window."""
    is_recent = F.col("verdict.judged_us") > clock.now_us - config.storm_window * SECOND_US
    is_new = F.col("verdict.batch_id") == clock.batch_id
    of_cause = connections.where(is_recent).groupBy("verdict.cause")
    rows = of_cause.agg(F.count("*").alias("recent"), F.count_if(is_new).alias("new")).collect()
    new = Counter({row["cause"]: row["new"] for row in rows if row["new"]})
    return new, Counter({row["cause"]: row["recent"] for row in rows})
