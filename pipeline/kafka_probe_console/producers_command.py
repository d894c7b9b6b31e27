"""The command `kafka-probe producers`: how clients write, what they risk, and what they waste."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.ends import not_internal
from kafka_probe_console.period import Period
from kafka_probe_console.traffic import KNOWN_CLIENTS, bounded, count_of, of_one_side, workload
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_SUMS = ("requests", "records", "batches", "bytes", "refused_records", "errors")
_NUMBERS = ("requests", "requests_per_s", "records", "bytes", "records_per_batch", "bytes_per_batch")
_COUNTS = ("refused_records", "errors", "topics")
_SMALL_RECORDS, _OFTEN_PER_S = 2, 10


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

    `risks`: acks=0 or acks=1, refused records. `waste`: most batches are not compressed, or at least 10 requests per
    second have fewer than two records per batch.
    """
    tables.require("traffic")
    where, values = within("window_start", period)
    same = " AND ".join(
        f"producers.{name} IS NOT DISTINCT FROM {{0}}.{name}" for name in ("client", "side", "workload")
    )
    sql = f"""
        WITH every AS NOT MATERIALIZED (
            SELECT client_id AS client, side, level, api, if(side = 'client', {workload(tables)}, NULL) AS workload,
                acks, transactional_id, nullif(concat_ws(' ', software_name, software_version), '') AS library,
                if(side = 'client', node, NULL) AS node, coalesce(topic, topic_id) AS topic, requests, records, batches,
                record_bytes AS bytes, refused_records, {count_of("errors")} AS errors, codecs,
                least(window_start, now()) AS window_start, least(window_end, now()) AS window_end
            FROM traffic WHERE {where} AND {not_internal("client_id", internal=internal)}
        ),
        uses AS (FROM every WHERE level = 'topic' AND api = 'Produce'),
        of_sides AS (SELECT client, side, sum(requests) AS requests FROM uses GROUP BY ALL),
        producers AS (
            SELECT client, side, workload, acks, mode(library) AS library, mode(node) AS node,
                bool_or(transactional_id IS NOT NULL) AS is_transactional, count(DISTINCT topic) AS topics,
                {", ".join(f"sum({name}) AS {name}" for name in _SUMS)}, min(window_start) AS first,
                max(window_end) AS last
            FROM uses SEMI JOIN (FROM of_sides {of_one_side("client")}) watched
                ON watched.client IS NOT DISTINCT FROM uses.client AND watched.side = uses.side
            GROUP BY ALL
        ),
        of_codecs AS (
            SELECT client, side, workload, acks, string_agg(codec, ', ' ORDER BY count DESC, codec) AS codecs,
                coalesce(sum(count) FILTER (codec = 'none'), 0) / sum(count) AS uncompressed
            FROM (
                SELECT client, side, workload, acks, one.key AS codec, sum(one.value) AS count
                FROM (SELECT client, side, workload, acks, unnest(map_entries(codecs)) AS one FROM uses) GROUP BY ALL
            ) GROUP BY client, side, workload, acks
        ),
        idempotent AS (
            SELECT DISTINCT client, side, workload FROM every WHERE level = 'api' AND api = 'InitProducerId'
        ),
        rates AS (
            SELECT *, {", ".join(f"{bounded(f'producers.{name}')} AS {name}_sum" for name in _SUMS)},
                requests_sum / nullif(epoch(last) - epoch(first), 0) AS requests_per_s,
                records_sum / nullif(batches_sum, 0) AS records_per_batch,
                bytes_sum / nullif(batches_sum, 0) AS bytes_per_batch
            FROM producers
        )
        SELECT producers.client, producers.workload, library, node, topics,
            if(producers.side = 'client', 'client', 'broker') AS watched,
            if(producers.acks = -1, 'all', producers.acks::VARCHAR) AS acks,
            CASE WHEN is_transactional THEN 'transactional' WHEN idempotent.side IS NOT NULL THEN 'idempotent' END
                AS producer,
            codecs, requests_per_s, records_per_batch, bytes_per_batch,
            {", ".join(f"{name}_sum AS {name}" for name in _SUMS)},
            nullif(concat_ws(', ', if(producers.acks IN (0, 1), 'acks=' || producers.acks, NULL),
                if(refused_records > 0, 'refused records', NULL)), '') AS risks,
            nullif(concat_ws(', ', if(uncompressed > 0.5, 'uncompressed', NULL),
                if(requests_per_s >= {_OFTEN_PER_S} AND records_per_batch < {_SMALL_RECORDS}, 'small batches', NULL)),
                '') AS waste, first, last
        FROM rates producers
            LEFT JOIN of_codecs ON {same.format("of_codecs")} AND producers.acks IS NOT DISTINCT FROM of_codecs.acks
            LEFT JOIN idempotent ON {same.format("idempotent")}
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("client", "acks", "producer", "codecs", "risks", "waste", *_NUMBERS, *_COUNTS),
            *("workload", "library", "node", "watched", "last", "first"),
            numbers=(*_NUMBERS, *_COUNTS),
            times={"last", "first"},
        ),
        sort="bytes",
        time="last",
        subject="producer",
        known=f"{KNOWN_CLIENTS} WHERE api = 'Produce'",
    )
