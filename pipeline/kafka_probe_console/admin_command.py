"""The command `kafka-probe admin`: who changed topics, ACLs, quotas, configurations, groups or offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe.protocol.administration import ADMINISTRATION
from kafka_probe_console.answer_command import prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.end_columns import ASKED, library_of, process_of, workload_of
from kafka_probe_console.errors import TableError
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_SAME = """one.flow_id = answered.flow_id AND one.correlation_id = answered.correlation_id AND one.api = answered.api
    AND one.use = answered.use AND one.api_version = answered.api_version
    AND one."group" IS NOT DISTINCT FROM answered."group" AND one.topics IS NOT DISTINCT FROM answered.topics"""
"""The condition that both ends report the same request."""
_ADMINISTRATION = f"api_key IN ({', '.join(str(int(key)) for key in sorted(ADMINISTRATION))})"
_KNOWN = f"SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM requests WHERE {_ADMINISTRATION}"


@click.command(
    epilog="""\b
Examples:
  kafka-probe admin --tables kafka-probe-output --since 7d
  kafka-probe admin --tables kafka-probe-output --filter "topics ~ '*orders*'"
"""
)
@prints_view()
def admin(tables: OpenTables, period: Period) -> AnswerView:
    """Print who changed topics, ACLs, quotas, configurations, groups or offsets, and with which result.

    `result`: ok, Kafka's names of errors, `partly` if not all topics or partitions failed, or that no response was
    seen. An error of ACLs, quotas or groups may be that of one of several. The result is unknown for APIs of which only
    headers leave the kernel, such as those of configurations. OffsetCommit and DeleteRecords are not printed, nor are
    topics that brokers create when a client asks for their metadata.
    """
    if not tables.add("requests"):
        tables.require("traffic")
        raise TableError("The tables have no request that changed a cluster: there is no table requests yet.")
    where, values = within(ASKED, period)
    sql = f"""
        WITH changes AS (
            SELECT {ASKED} AS time, api, client.id AS client, side, local, peer, node, api_version, "group", flow_id,
                correlation_id, latency_us / 1000 AS latency_ms, {library_of("client")} AS library,
                {process_of()} AS process, {workload_of(tables, "requests")} AS workload,
                {_joined(_names("true"))} AS topics,
                len(list_filter(topics, lambda t: t.error != 0)) > 0 AS failed,
                -- An error of a topic is one of all its partitions.
                NOT list_has_all(
                    {_names("t.error != 0 AND t.partition IS NULL")}, {_names("t.error = 0")}
                ) AS succeeded,
                {_joined("list_transform(error_names, lambda one: one.key)")} AS errors, status,
                response_bytes IS NOT NULL AS is_answered,
                -- A client may use a correlation id again.
                row_number() OVER (PARTITION BY agent_id, conn_id, correlation_id, api ORDER BY ts, seq) AS use
            FROM requests WHERE {where} AND {_ADMINISTRATION}
        ),
        results AS (
            SELECT * EXCLUDE (failed, succeeded, errors, status), concat_ws(' ', CASE
                    WHEN NOT is_answered THEN 'no response seen'
                    WHEN status = 'complete' AND failed AND succeeded THEN 'partly: ' || errors
                    WHEN errors IS NOT NULL THEN errors
                    WHEN status = 'complete' THEN 'ok'
                END, if(status IN ('complete', 'header_only'), NULL, '(' || status || ')')) AS result
            FROM changes
        ),
        of_brokers AS (FROM results WHERE side = 'server'),
        of_clients AS (FROM results WHERE side = 'client')
        SELECT one.* REPLACE (nullif(coalesce(answered.result, one.result), '') AS result,
                coalesce(answered.latency_ms, one.latency_ms) AS latency_ms),
            one.local AS address, one.peer AS broker
        -- A client may change its buffers before its agent reads them.
        FROM of_clients one LEFT JOIN of_brokers answered ON {_SAME} AND answered.is_answered
        UNION ALL BY NAME
        SELECT answered.* REPLACE (nullif(result, '') AS result, NULL AS process, NULL AS workload, NULL AS node),
            peer AS address, local AS broker
        FROM of_brokers answered ANTI JOIN of_clients one ON {_SAME}
    """
    return AnswerView(
        sql=sql,
        values=values,
        columns=columns(
            *("time", "api", "topics", "result", "client", "process", "group", "workload", "address", "node"),
            *("broker", "library", "side", "latency_ms", "api_version"),
            numbers={"latency_ms", "api_version"},
            times={"time"},
        ),
        sort="time",
        time="time",
        subject="administrative request",
        known=_KNOWN,
    )


def _names(condition: str) -> str:
    """Return the SQL of a list of the names, or ids, of those `topics` t that fulfil a condition."""
    return f"list_transform(list_filter(topics, lambda t: {condition}), lambda t: coalesce(t.topic, t.topic_id))"


def _joined(names: str) -> str:
    """Return the SQL of a list of names as one text, each once, null without any."""
    return f"nullif(array_to_string(list_sort(list_distinct({names})), ', '), '')"
