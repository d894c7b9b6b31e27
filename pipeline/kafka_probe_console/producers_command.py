"""The command `kafka-probe producers`: how clients write, what they risk, and what they waste.

Requests, records and bytes are those of APIs, so that a request to many topics counts once; codecs and topics are those
of the topics in requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe.protocol.error_codes import ERROR_CODES
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.end_columns import not_internal
from kafka_probe_console.period import Period
from kafka_probe_console.traffic import (
    FIRST,
    KNOWN_CLIENTS,
    LAST,
    LIBRARY,
    count_of,
    counted_once,
    same,
    topic_names,
    workload,
)
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

# Errors of partitions that are RetriableException in clients, of those that brokers return for Produce.
_RETRIABLE = tuple(
    ERROR_CODES[name]
    for name in (
        *("CORRUPT_MESSAGE", "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE", "NOT_LEADER_OR_FOLLOWER"),
        *("REQUEST_TIMED_OUT", "REPLICA_NOT_AVAILABLE", "NETWORK_EXCEPTION", "NOT_ENOUGH_REPLICAS"),
        *("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "KAFKA_STORAGE_ERROR", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"),
        *("CONCURRENT_TRANSACTIONS", "THROTTLING_QUOTA_EXCEEDED", "UNKNOWN_TOPIC_ID", "INCONSISTENT_TOPIC_ID"),
    )
)
_SUMS = ("requests", "records", "batches", "bytes", "refused_records", "errors", "retriable_errors")
_NUMBERS = ("requests", "requests_per_s", "records", "bytes", "records_per_batch", "bytes_per_batch")
_COUNTS = ("refused_records", "errors", "retriable_errors", "topics")
_SMALL_RECORDS, _OFTEN_PER_S = 2, 10
_PRODUCER = ("client", "side", "workload", "acks")


@click.command(
    epilog="""\b
Examples:
  kafka-probe producers --tables kafka-probe-output --filter "risks ~ '*acks=*'"
  kafka-probe producers --tables kafka-probe-output --sort requests_per_s --since 1h
"""
)
@internal_flag
@prints_view()
def producers(tables: OpenTables, period: Period, *, internal: bool) -> AnswerView:
    """Print how each client writes: acks, idempotence, compression, and records and bytes per batch.

    `risks`: acks=0, acks=1, acks=differ, refused records. `waste`: most record sets are not compressed, or at least 10
    requests per second have fewer than two records per batch. `retriable_errors`: errors of partitions after which
    clients may send the records again.
    """
    tables.require("traffic")
    where, values = within("window_start", period)
    sql = f"""
        WITH rows AS NOT MATERIALIZED (
            SELECT client_id AS client, side, if(side = 'client', {workload(tables)}, NULL) AS workload,
                if(side = 'client', node, NULL) AS node, level, api, if(acks = -1, 'all', acks::VARCHAR) AS acks,
                transactional_id, {LIBRARY} AS library,
                coalesce(topic, name, topic_id) AS topic, codecs, requests, records, batches, record_bytes AS bytes,
                refused_records, {count_of("errors")} AS errors, {count_of("errors", *_RETRIABLE)} AS retriable_errors,
                {FIRST} AS first, {LAST} AS last
            FROM traffic LEFT JOIN {topic_names(tables)} USING (topic_id)
            WHERE {where} AND {not_internal("client_id", internal=internal)}
        ),
        of_acks AS (
            SELECT client, side, workload, acks, {", ".join(f"sum({name}) AS {name}" for name in _SUMS)},
                arg_max(library, last) AS library, arg_max(node, last) AS node,
                bool_or(transactional_id IS NOT NULL) AS is_transactional, min(first) AS first, max(last) AS last
            FROM rows WHERE level = 'api' AND api = 'Produce' GROUP BY ALL
        ),
        uses AS (
            SELECT * REPLACE (coalesce(acks, CASE
                WHEN batches > 0 THEN 'differ'
                WHEN requests > 0 THEN 'unknown'
                -- Responses to requests of an earlier interval.
                ELSE max(acks) OVER (PARTITION BY client, side, workload)
            END) AS acks) FROM of_acks
        ),
        once AS (
            SELECT *, side = 'server' AND bool_or(side = 'client') OVER (PARTITION BY client, acks) AS is_rest
            FROM {counted_once("uses", ("client", "acks"), ("workload",), _SUMS)}
        ),
        facts AS (
            SELECT client, side, workload, acks, arg_max(library, last) AS library,
                arg_max(node, last) AS node, bool_or(is_transactional) AS is_transactional
            FROM uses GROUP BY ALL
        ),
        of_topics AS (
            SELECT client, side, workload, topic, codecs, coalesce(acks, 'differ') AS acks
            FROM rows WHERE level = 'topic' AND api = 'Produce'
        ),
        topics AS (SELECT client, side, workload, acks, count(DISTINCT topic) AS topics FROM of_topics GROUP BY ALL),
        codecs AS (
            SELECT client, side, workload, acks, string_agg(codec, ', ' ORDER BY count DESC, codec) AS codecs,
                coalesce(sum(count) FILTER (codec = 'none'), 0) / sum(count) AS uncompressed
            FROM (
                SELECT client, side, workload, acks, one.key AS codec, sum(one.value) AS count
                FROM (SELECT client, side, workload, acks, unnest(codecs) AS one FROM of_topics)
                WHERE one.value > 0 GROUP BY ALL
            ) GROUP BY ALL
        ),
        idempotent AS (
            SELECT DISTINCT client, side, workload, 'all' AS acks FROM rows
            WHERE level = 'api' AND api = 'InitProducerId'
        )
        -- Codecs and topics of the rest that only brokers saw cannot be separated from those of watched clients.
        SELECT once.*, library, node, if(is_rest, NULL, topics) AS topics, if(is_rest, NULL, codecs) AS codecs,
            CASE WHEN is_transactional THEN 'transactional' WHEN idempotent.acks = 'all' THEN 'idempotent' END
                AS producer,
            requests / nullif(epoch(last) - epoch(first), 0) AS requests_per_s,
            records / nullif(batches, 0) AS records_per_batch, bytes / nullif(batches, 0) AS bytes_per_batch,
            nullif(concat_ws(', ', if(once.acks IN ('0', '1', 'differ'), 'acks=' || once.acks, NULL),
                if(refused_records > 0, 'refused records', NULL)), '') AS risks,
            nullif(concat_ws(', ', if(uncompressed > 0.5 AND NOT is_rest, 'uncompressed', NULL),
                if(requests_per_s >= {_OFTEN_PER_S} AND records_per_batch < {_SMALL_RECORDS}, 'small batches', NULL)),
                '') AS waste
        FROM once LEFT JOIN facts ON {same("once", "facts", _PRODUCER)}
            LEFT JOIN idempotent ON {same("once", "idempotent", _PRODUCER)}
            LEFT JOIN topics ON {same("once", "topics", _PRODUCER)}
            LEFT JOIN codecs ON {same("once", "codecs", _PRODUCER)}
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("client", "acks", "producer", "codecs", "risks", "waste", *_NUMBERS, *_COUNTS),
            *("workload", "library", "node", "side", "last", "first"),
            numbers=(*_NUMBERS, *_COUNTS),
            times={"last", "first"},
        ),
        sort="bytes",
        time="last",
        subject="producer",
        known=f"{KNOWN_CLIENTS} WHERE api = 'Produce'",
    )
