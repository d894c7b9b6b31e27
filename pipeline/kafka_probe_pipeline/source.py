"""The source: Kafka records of many lines in, typed events and malformed lines with a reason out.

The schema of a row is derived from `kafka_probe.events`. No line is lost here: it is an event or it has a reason.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.storagelevel import StorageLevel

from kafka_probe import events as schema
from kafka_probe_pipeline.config import PipelineConfig

SCALARS: dict[schema.Scalar, T.DataType] = {"string": T.StringType(), "long": T.LongType(), "boolean": T.BooleanType()}
REQUIRED = ("kind", "agent_id", "seq", "ts")
YEAR_9999_US = 253_370_764_800_000_000
RECORD = ("topic", "partition", "offset", "timestamp")

STORAGE = StorageLevel.DISK_ONLY
"""Where the parsed events of a micro-batch are kept until it ends: in memory they would fill the heap."""

# Bounds of what an event may hold. Beyond them it would stop the job, or its sums could wrap.
TEXT_CHARACTERS = 2048  # agents cut texts at 1,024
ADDRESS_CHARACTERS = 64  # address:port of IPv6 has up to 47; thousands are kept of each agent
MOST = 1 << 48  # of a count or a time span: 281 TB, or 8.9 years in µs
MOST_RECORD_BYTES = (4 << 20) + 1  # an event of an agent has at most 4 MiB, and a line feed
MOST_TOPICS = 4097  # an agent names 4096, and counts the others in one row
MOST_OPEN = 514  # an agent sends 512 counts of open connections, and the sums of the others by side
MOST_MEMBERS = 512  # of a request that names several: what agents send
MOST_SEQ = 1 << 48  # 89 years of 100,000 events per second
MOST_SAMPLES = 512  # what agents send at once
MOST_NS = (1 << 62) - 1  # of a clock: 146 years
MOST_OFFSETS = 1000  # ends or positions in an event: what agents send at once
KEYS = rf"\A(0|-?[1-9][0-9]{{0,2}}|{'|'.join(schema.CODECS)})\z"  # an error code, a bucket of latency, a codec
COUNTS = (
    *("requests", "responses", "request_bytes", "response_bytes"),
    *("sent_bytes", "received_bytes", "unacked_bytes", "last_request_bytes", "connections"),
    *("in_flight", "retransmits", "unanswered_retransmits"),
)
SPANS = ("throttle_ms", "age_us", "idle_us", "silence_us", "received_idle_us", "listener_closed_us")
TIMES = ("since", "closing_ts", "still_open_ts", "complete_since", "complete_until")
ADDRESSES = ("local", "peer")
MAPS = ("errors", "latency", "latency_empty")
MAPS_OF_AGENT = ("losses", "counters", "other")
COUNTS_OF_TOPIC = (
    *("requests", "partitions", "records", "batches", "bytes", "uncounted_bytes"),
    *("refused_records", "refused_bytes"),
)
MAPS_OF_TOPIC = ("errors", "codecs")

# How an agent begins the line of an event of some kinds.
_OF_KINDS = r'^\{{"v":[0-9]+,"node":"[^"\\]*","agent_id":"[^"\\]*","seq":[0-9]+,"kind":"({})",'
_MISFIT = "_misfit"  # where from_json puts a line with a value of another type than the schema's
_JSON = {"columnNameOfCorruptRecord": _MISFIT, "allowSingleQuotes": "false"}


def spark_schema(*kinds: str) -> T.StructType:
    """Return the fields of some kinds of events as one type, by default of all. A kind leaves others' fields null."""
    return _struct(_fields(kinds))


def _fields(kinds: Iterable[str]) -> list[schema.Field]:
    declared = {**schema.KINDS, "frames": schema.FRAMES}
    return [field for kind in kinds or schema.KINDS for field in declared[kind]]


def records(spark: SparkSession, config: PipelineConfig, topic: str, start: str, least_s: float) -> DataFrame:
    """Return a topic as a stream.

    start: earliest or latest, for a query without a checkpoint.
    least_s: least time between two micro-batches, unless `max_records_per_trigger` records wait.
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{name}": value for name, value in config.kafka.items()})
        .option("subscribe", topic)
        .option("startingOffsets", start)
        .option("maxOffsetsPerTrigger", config.max_records_per_trigger)
        .option("failOnDataLoss", not config.skip_lost)
    )
    if not config.once:
        reader = reader.option("minOffsetsPerTrigger", config.max_records_per_trigger)
        reader = reader.option("maxTriggerDelay", f"{round(least_s * 1000)}ms")
    return reader.load()


def parsed(records: DataFrame, *kinds: str) -> DataFrame:
    """Return a row per line: `event`, or `reason` and line; with topic, partition, offset, timestamp of its record.

    `line_number` counts from 0 within the record. Blank lines are none. With `kinds`, only their fields are read, and
    lines that begin as an agent writes other kinds are left out unread: that takes a part of the time. To be persisted:
    Spark moves a filter on `reason` to the line, and there reads its JSON anew for each reason that it may have.
    """
    names = {field.name for field in _fields(kinds)}
    event = T.StructType([field for field in _struct([*_fields(()), *schema.FRAMES]) if field.name in names])
    others = "|".join(schema.KINDS.keys() - kinds) if kinds else ""
    value = F.col("value").cast("string")
    # A record of 60 KB on the wire may unpack to 60 MB, and parsing takes many times that.
    lines_of = F.when(_is_large(value), F.array(value)).otherwise(F.split(value, "\n"))
    return (
        records.select(*RECORD, F.posexplode(lines_of))
        .withColumnsRenamed({"pos": "line_number", "col": "line"})
        .where(F.trim("line") != "")
        .where(~F.col("line").rlike(_OF_KINDS.format(others)) if others else F.lit(True))
        .withColumn("event", F.when(~_is_large(F.col("line")), F.from_json("line", _with_misfit(event), _JSON)))
        .withColumn("reason", _reason(F.col("line"), F.col("event"), event.names))
        .withColumn("event", F.when(F.col("reason").isNull(), F.col("event").dropFields(_MISFIT)))
        .withColumn("line", F.when(F.col("reason").isNotNull(), F.col("line")))
    )


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a micro-batch: its number, and Kafka's time of its newest record, µs since epoch."""

    batch_id: int
    now_us: int


def received(parsed: DataFrame) -> DataFrame:
    """Return the events, a column per field of `spark_schema`, and two more.

    received_us: when Kafka got the event, µs since epoch; position: where its line is in the topic.
    """
    position = F.struct("partition", "offset", "line_number").alias("position")
    received_us = F.unix_micros("timestamp").alias("received_us")
    return parsed.where(F.col("reason").isNull()).select("event.*", received_us, position)


def malformed(parsed: DataFrame) -> DataFrame:
    """Return the lines that are no events: topic, partition, offset, line_number, line, reason."""
    return parsed.where(F.col("reason").isNotNull()).drop("event", "timestamp")


def _is_large(text: Column) -> Column:
    return F.octet_length(text) > MOST_RECORD_BYTES


def _reason(line: Column, event: Column, fields: Container[str]) -> Column:
    """Return why a line is no event; null if it is one. fields: those that were read."""
    # from_json reads the first value of a line and forgets the rest: one line must be one value.
    one_value = F.coalesce(F.json_array_length(F.concat(F.lit("["), line, F.lit("]"))), F.lit(0)) == 1
    reasons = {
        f"a record of more than {MOST_RECORD_BYTES} bytes": _is_large(line),
        "not a JSON object": ~one_value | ~F.ltrim(line).startswith("{"),
        "a value of another type than the schema's": event[_MISFIT].isNotNull(),
        f"schema version other than {schema.SCHEMA_VERSION}": ~event["v"].eqNullSafe(schema.SCHEMA_VERSION),
        **{f"no {name}": event[name].isNull() for name in REQUIRED},
        "unknown kind": ~event["kind"].isin("frames" if "samples" in fields else list(schema.KINDS)),
        "ts before 1970 or after 9999": ~event["ts"].between(0, YEAR_9999_US),
        "seq below 0 or above 2^48": ~event["seq"].between(0, MOST_SEQ),
        f"a text of more than {TEXT_CHARACTERS} characters": (F.octet_length(line) > TEXT_CHARACTERS)
        & _has_long_text(event),
        f"an address of more than {ADDRESS_CHARACTERS} characters": _any(
            F.length(event[name]) > ADDRESS_CHARACTERS for name in ADDRESSES if name in fields
        ),
        f"labels of more than {TEXT_CHARACTERS} characters": _has_long_labels(event, fields),
        "a time other than ts before 1970 or after 9999": _any(
            ~event[name].between(0, YEAR_9999_US) for name in TIMES if name in fields
        ),
        "a count below 0 or beyond 2^48": _out_of_bounds(event, fields),
        f"more than {MOST_TOPICS} topics": _any([F.size(event["topics"]) > MOST_TOPICS] if "topics" in fields else []),
        f"more than {MOST_MEMBERS} members": _any(
            [F.size(event["members"]) > MOST_MEMBERS] if "members" in fields else []
        ),
        f"more than {MOST_OPEN} open counts": _any([F.size(event["open"]) > MOST_OPEN] if "open" in fields else []),
        "a count whose key is not an error code, bucket or codec": _strange_keys(event, fields),
        **(_reasons_of_offsets(event) if "partition_ends" in fields else {}),
        **(_reasons_of_samples(event) if "samples" in fields else {}),
    }
    return F.coalesce(*(F.when(holds, reason) for reason, holds in reasons.items()))


def _has_long_text(event: Column) -> Column:
    """Return True if the event has a text that is too long; an escape counts as one character.

    It looks at Spark's own JSON of the parsed event: from_json makes a text of any value.
    """
    written = F.to_json(event.dropFields(_MISFIT))
    parts = F.split(F.regexp_replace(written, r"\\(u[0-9a-fA-F]{4}|.)", "."), '"')
    return F.size(F.filter(parts, lambda part, i: (i % 2 == 1) & (F.length(part) > TEXT_CHARACTERS))) > 0


def _has_long_labels(event: Column, fields: Container[str]) -> Column:
    """Return True where the labels of a workload are too long in all.

    A character between two of them counts: any number of them may be empty.
    """

    def long(workload: Column) -> Column:
        labels = workload["labels"]
        texts = (F.array_join(values, ",") for values in (F.map_keys(labels), F.map_values(labels)))
        return F.length(F.concat(*texts)) > TEXT_CHARACTERS

    found = [long(event["workload"])] if "workload" in fields else []
    if "open" in fields:
        found.append(F.exists(event["open"], lambda counted: long(counted["workload"])))
    return _any(found)


def _out_of_bounds(event: Column, fields: Container[str]) -> Column:
    def beyond(number: Column) -> Column:
        return ~number.between(-MOST, MOST)  # brokers name some of these, and may name nonsense

    def out(number: Column) -> Column:
        return ~number.between(0, MOST)

    def out_of_map(counts: Column) -> Column:
        return F.exists(F.map_values(counts), out)

    def of_topic(topic: Column) -> Column:
        return _any((*(beyond(topic[n]) for n in COUNTS_OF_TOPIC), *(out_of_map(topic[n]) for n in MAPS_OF_TOPIC)))

    found = [out(event[name]) for name in COUNTS if name in fields]
    found += [beyond(event[name]) for name in SPANS if name in fields]
    found += [out_of_map(event[name]) for name in (*MAPS, *MAPS_OF_AGENT) if name in fields]
    if "topics" in fields:
        found.append(F.exists(event["topics"], of_topic))
    if "open" in fields:
        found.append(F.exists(event["open"], lambda counted: out(counted["count"])))
    return _any(found)


def _strange_keys(event: Column, fields: Container[str]) -> Column:
    def strange(counts: Column) -> Column:
        return F.exists(F.map_keys(counts), lambda key: ~key.rlike(KEYS))

    found = [strange(event[name]) for name in MAPS if name in fields]
    if "topics" in fields:
        found.append(F.exists(event["topics"], lambda topic: _any(strange(topic[name]) for name in MAPS_OF_TOPIC)))
    return _any(found)


def _reasons_of_offsets(event: Column) -> dict[str, Column]:
    lists = [event[name] for name in ("partition_ends", "group_positions")]

    def is_valid(entry: Column) -> Column:
        valid = entry["partition"].between(0, MOST) & (entry["offset"] >= 0)
        return F.coalesce(valid & entry["seen"].between(0, YEAR_9999_US), F.lit(False))

    return {
        f"more than {MOST_OFFSETS} offsets": _any(F.size(entries) > MOST_OFFSETS for entries in lists),
        "an offset, its partition or its time is missing or out of bounds": _any(
            F.exists(entries, lambda entry: ~is_valid(entry)) for entries in lists
        ),
    }


def _reasons_of_samples(event: Column) -> dict[str, Column]:
    samples, pieces, ends = event["samples"], event["samples"]["data"], F.size(event["ends"])
    numbers = [samples[name] for name in schema.FrameSamples.__annotations__ if name != "data"]

    def of_no_end(end: Column) -> Column:
        return ~F.coalesce(end.between(0, ends - 1), F.lit(False))

    def out_of_time(ns: Column) -> Column:
        return ~ns.between(0, MOST_NS) | (ns + event["wall_offset_ns"] < 0)

    def misses(condition: Column) -> Column:
        return ~F.coalesce(condition, F.lit(False))

    return {
        "samples in lists of different lengths": misses(
            reduce(Column.__and__, (F.size(each) == F.size(pieces) for each in numbers)) & pieces.isNotNull()
        ),
        f"more than {MOST_SAMPLES} samples or ends": (F.size(pieces) > MOST_SAMPLES) | (ends > MOST_SAMPLES),
        "a sample of no end": event["ends"].isNull()
        | F.exists(event["ends"], Column.isNull)
        | F.exists(samples["end"], of_no_end),
        "a sample without a number": _any(F.exists(each, Column.isNull) for each in numbers),
        "a sample that is not base64": F.exists(pieces, lambda piece: F.try_to_binary(piece, F.lit("base64")).isNull()),
        "samples before 1970 or after 9999": misses(event["wall_offset_ns"].between(-MOST_NS, MOST_NS))
        | F.exists(samples["monotonic_ns"], out_of_time),
    }


def _any(conditions: Iterable[Column]) -> Column:
    """Return True if one of them holds; unknown ones do not."""
    return reduce(Column.__or__, (F.coalesce(condition, F.lit(False)) for condition in conditions), F.lit(False))


def struct_of(fields: Mapping[str, T.DataType]) -> T.StructType:
    """Return fields by name as one type."""
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def _with_misfit(struct: T.StructType) -> T.StructType:
    return T.StructType([*struct.fields, T.StructField(_MISFIT, T.StringType())])


def _struct(fields: Iterable[schema.Field]) -> T.StructType:
    merged: dict[str, T.DataType] = {}
    for field in fields:
        merged[field.name] = _merged(merged.get(field.name), _type(field.type), field.name)
    return struct_of(merged)


def _type(kind: schema.FieldType) -> T.DataType:
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
    """Return the type of a field of two kinds: theirs if equal, or a list of objects with all fields."""
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
