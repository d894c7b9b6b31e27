"""Describes the columns of the pipeline's tables, for docs/reference/tables.md."""

from __future__ import annotations

from kafka_probe import events
from kafka_probe_pipeline import traffic
from kafka_probe_pipeline.source import spark_schema
from kafka_probe_pipeline.tables import BATCH_ID, DATE, TABLES
from kafka_probe_pipeline.verdicts import CLOSE_ROW, END_ROW
from scripts.markdown import table

# Columns of the pipeline's tables that are not fields of events.
COLUMNS = {
    "date": "UTC date of the row's time, by which each table is partitioned",
    "batch_id": "number of the micro-batch with which the row was added",
    "window_start": "start of the window, UTC",
    "window_end": "end of the window",
    "level": "`api`: totals of an API; `topic`: what was done to one topic",
    "topic": "name of a topic",
    "topic_id": "id of a topic",
    "codecs": "record sets by compression codec",
    "received_ts": "when Kafka received the event, by the broker's clock; other times are of the agent's clock",
    "seen_ts": "time of the response that has the offset",
    "broker": "address:port of the broker's end of that connection, if `cluster_id` is null",
    "partition": "partition of the topic",
    "offset": "end of the partition, or position of the group in it",
    "source": "API of the response, see [`offsets` events](events.md)",
    "judged_ts": "when the cause was named, by the broker's clock",
    "cause": "[cause](causes.md) of the close",
    "evidence": "the facts that name the cause, as a sentence",
    "by": "side whose report names the cause: `client` or `server`",
    "refused_bytes": "of a topic: part of `record_bytes` that the broker did not write",
    "refused_request_bytes": "size of the Produce request for which the broker closed the connection",
    "key": "`flow_id` of the connection; without one the agent's id and the `conn_id`",
    "state": "of a connection with a verdict: `half closed` or `closed`; of a storm: `active` or `resolved`",
    "ends": "ends that agents reported: `both`, `client only` or `server only`",
    "server": "the broker's end, null if no agent reported it",
    "close": "facts of the end's `close` event, null while the end is open",
    "last_seen_ts": "when Kafka received the newest event about the end",
    "ended_ts": "when the end was closed",
    "since_ts": "time of the storm's first close, by the clock of its host but not after Kafka got it",
    "opened_ts": "of an end, when it was opened, or found if it is older than the agent; of a storm, when its alert "
    "was first sent",
    "resolved_ts": "when the storm was over; null before",
    "id": "id of the storm, as in its alerts",
    "subject": "what the storm is about: a cause, a broker or a workload",
    "change": "what happened to the storm: `opened`, `updated` or `resolved`",
    "count": "closes of the storm so far",
    "population": "open connections of the scope of which the storm hit the largest share",
    "share": "the share of them that it hit",
    "scope": "that scope: a broker, network or workload, or all connections",
    "both_ends": "how many of its closes were explained by both ends",
    "workloads": "the workloads that it hit most, each with a count",
    "brokers": "the same of brokers",
    "networks": "the same of networks",
    "hour": "of a frame: hour of `received_ts`, UTC, by which the table is partitioned besides `date`",
}


def column_table() -> str:
    tables = {
        **{name: (DATE, BATCH_ID, *kind.schema.names) for name, kind in TABLES.items()},
        "verdicts.client, .server": END_ROW.names,
        "verdicts.client.close, .server.close": CLOSE_ROW.names,
    }
    of_events = {field.name for field in spark_schema()} | events.FrameSamples.__annotations__.keys() | {"copy_rules"}
    others = {column for columns in tables.values() for column in columns} - of_events
    columns = table(
        ("table, or column of it", "columns"),
        ((f"`{name}`", ", ".join(f"`{column}`" for column in columns)) for name, columns in tables.items()),
    )
    meanings = table(("column", "meaning"), ((f"`{column}`", COLUMNS[column]) for column in COLUMNS))
    named_elsewhere = {*traffic.DIMENSIONS, *traffic.COUNTS}
    assert others - named_elsewhere <= COLUMNS.keys() <= others, "COLUMNS must list these columns"
    return f"{columns}\n## Columns that events do not have\n\n{meanings}"
