"""The source: Kafka records of many lines in, typed events and malformed lines with a reason out.

The schema of a row is derived from `kafka_probe.events`. No line is lost here: it is an event or it has a reason.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_probe import events as schema
from kafka_probe_pipeline.config import Config

SCALARS: dict[schema.Scalar, T.DataType] = {"string": T.StringType(), "long": T.LongType(), "boolean": T.BooleanType()}
REQUIRED = ("kind", "agent_id", "seq", "ts")
YEAR_9999_US = 253_370_764_800_000_000
RECORD = ("topic", "partition", "offset", "timestamp")

_MISFIT = "_misfit"  # where from_json puts a line with a value of another type than the schema's


def spark_schema() -> T.StructType:
    """The fields of all kinds of events as one type; a kind leaves the fields of the others null."""
    return _struct((*schema.COMMON, *(field for fields in schema.KINDS.values() for field in fields)))


def records(spark: SparkSession, config: Config) -> DataFrame:
    """The events topic as a stream from its first record on."""
    return (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{name}": value for name, value in config.kafka.items()})
        .option("subscribe", config.events_topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", config.max_records_per_trigger)
        .option("failOnDataLoss", not config.skip_lost)
        .load()
    )


def parsed(records: DataFrame, fields: Container[str] | None = None) -> DataFrame:
    """One row per line: `event`, or `reason` and the line; with topic, partition, offset and timestamp of its record.

    `line_number` counts from 0 within the record. Blank lines are none. Of an event only `fields` are read, if given:
    that takes a part of the time. To be persisted: Spark moves a filter on `reason` to the line, and there reads its
    JSON anew for each reason that it may have.
    """
    event = T.StructType([field for field in spark_schema() if fields is None or field.name in fields])
    return (
        records.select(*RECORD, F.posexplode(F.split(F.col("value").cast("string"), "\n")))
        .withColumnsRenamed({"pos": "line_number", "col": "line"})
        .where(F.trim("line") != "")
        .withColumn("event", F.from_json("line", _with_misfit(event), {"columnNameOfCorruptRecord": _MISFIT}))
        .withColumn("reason", _reason(F.col("line"), F.col("event")))
        .withColumn("event", F.when(F.col("reason").isNull(), F.col("event").dropFields(_MISFIT)))
        .withColumn("line", F.when(F.col("reason").isNotNull(), F.col("line")))
    )


def events(parsed: DataFrame) -> DataFrame:
    """The events, one column per field of `spark_schema`."""
    return parsed.where(F.col("reason").isNull()).select("event.*")


@dataclass(frozen=True, slots=True)
class Clock:
    """When a micro-batch is: its number, and Kafka's time of its newest record, µs since epoch."""

    batch_id: int
    now_us: int


def received(parsed: DataFrame) -> DataFrame:
    """The same, with `received_us`: when Kafka got the event, µs since epoch."""
    return parsed.where(F.col("reason").isNull()).select("event.*", F.unix_micros("timestamp").alias("received_us"))


def once(events: DataFrame, heard: DataFrame) -> DataFrame:
    """Without the flows, which add up, that an earlier batch had: an agent that starts again may send some once more.

    heard: the `last_seq` of each agent by then. Within the batch they are still twice.
    """
    before = F.broadcast(heard.select("agent_id", "last_seq"))
    known = (F.col("kind") == "flow") & F.coalesce(F.col("seq") <= F.col("last_seq"), F.lit(False))
    return events.join(before, "agent_id", "left").where(~known).drop("last_seq")


def malformed(parsed: DataFrame) -> DataFrame:
    """The lines that are no events: topic, partition, offset, line_number, line, reason."""
    return parsed.where(F.col("reason").isNotNull()).drop("event", "timestamp")


def _reason(line: Column, event: Column) -> Column:
    """Why a line is no event; null if it is one."""
    # from_json reads the first value of a line and forgets the rest: one line must be one value.
    one_value = F.coalesce(F.json_array_length(F.concat(F.lit("["), line, F.lit("]"))), F.lit(0)) == 1
    reasons = {
        "not a JSON object": ~one_value | ~F.ltrim(line).startswith("{"),
        "a value of another type than the schema's": event[_MISFIT].isNotNull(),
        f"schema version other than {schema.SCHEMA_VERSION}": ~event["v"].eqNullSafe(schema.SCHEMA_VERSION),
        **{f"no {name}": event[name].isNull() for name in REQUIRED},
        "unknown kind": ~event["kind"].isin(list(schema.KINDS)),
        "ts before 1970 or after 9999": ~event["ts"].between(0, YEAR_9999_US),
    }
    return F.coalesce(*(F.when(holds, reason) for reason, holds in reasons.items()))


def struct_of(fields: Mapping[str, T.DataType]) -> T.StructType:
    """Fields by name as one type."""
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def _with_misfit(struct: T.StructType) -> T.StructType:
    return T.StructType([*struct.fields, T.StructField(_MISFIT, T.StringType())])


def _struct(fields: Iterable[schema.Field]) -> T.StructType:
    merged: dict[str, T.DataType] = {}
    for field in fields:
        merged[field.name] = _merged(merged.get(field.name), _type(field.type), field.name)
    return struct_of(merged)


def _type(kind: schema.Type) -> T.DataType:
    match kind:
        case schema.Struct(fields):
            return _struct(fields)
        case schema.ListOf(element):
            return T.ArrayType(_type(element))
        case schema.Counts():
            return T.MapType(T.StringType(), T.LongType())
        case schema.Strings():
            return T.MapType(T.StringType(), T.StringType())
        case _:
            return SCALARS[kind]


def _merged(one: T.DataType | None, other: T.DataType, name: str) -> T.DataType:
    """The type that holds a field of the same name of two kinds: equal, or lists of objects with all fields of both."""
    match one, other:
        case None, _:
            return other
        case T.ArrayType(elementType=T.StructType() as left), T.ArrayType(elementType=T.StructType() as right):
            fields = {field.name: field for field in (*right.fields, *left.fields)}
            if all(fields[field.name] == field for field in right.fields):
                return T.ArrayType(T.StructType([*fields.values()]))
        case _ if one == other:
            return other
    raise TypeError(f"the field {name} has two types in the event schema: {one} and {other}")
