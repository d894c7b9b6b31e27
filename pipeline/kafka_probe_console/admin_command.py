"""The command `kafka-probe admin`: who changed topics, permissions, quotas, configurations, groups or offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe.protocol.administration import ADMINISTRATION
from kafka_probe_console.answer_command import internal_flag, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.end_columns import library_of, not_internal, process_of, workload_of
from kafka_probe_console.errors import TableError
from kafka_probe_console.period import Period
from kafka_probe_console.views import AnswerView, within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_ADMINISTRATION = f"api_key IN ({', '.join(str(int(key)) for key in sorted(ADMINISTRATION))})"
_KNOWN = f"SELECT count(*), epoch_us(min(ts)), epoch_us(max(ts)) FROM requests WHERE {_ADMINISTRATION}"


@click.command(
    epilog="""\b
Examples:
  kafka-probe admin --tables kafka-probe-output --since 7d
  kafka-probe admin --tables kafka-probe-output --filter "topics ~ '*orders*'"
"""
)
@internal_flag
@prints_view()
def admin(tables: OpenTables, period: Period, *, internal: bool) -> AnswerView:
    """Print who changed topics, permissions, quotas, configurations, groups or offsets, and with which result.

    `result`: ok, Kafka's names of errors, or no response. It is unknown for APIs of which only headers leave the
    kernel, such as those of configurations.
    """
    if not tables.add("requests"):
        tables.require("traffic")
        raise TableError("The tables have no request that changed a cluster: there is no table requests yet.")
    where, values = within("ts", period)
    sql = f"""
        WITH changes AS (
            SELECT least(ts, received_ts) AS time, api, client.id AS client, side, local, peer, node, api_version,
                {_joined("list_distinct(list_transform(topics, lambda t: coalesce(t.topic, t.topic_id)))")} AS topics,
                "group", flow_id, correlation_id, latency_us / 1000 AS latency_ms, {library_of("client")} AS library,
                {process_of()} AS process, {workload_of(tables, "requests")} AS workload,
                CASE
                    WHEN response_bytes IS NULL THEN 'no response'
                    WHEN len(error_names) > 0 THEN {_joined("list_transform(error_names, lambda one: one.key)")}
                    WHEN status = 'complete' THEN 'ok'
                END AS result
            FROM requests WHERE {where} AND {_ADMINISTRATION} AND {not_internal("client.id", internal=internal)}
        )
        SELECT time, api, client, topics, "group", result, latency_ms, library, api_version,
            if(side = 'client', process, NULL) AS process, if(side = 'client', workload, NULL) AS workload,
            if(side = 'client', node, NULL) AS node, if(side = 'client', local, peer) AS address,
            if(side = 'client', peer, local) AS broker, side
        FROM changes WHERE side = 'client' OR NOT EXISTS (
            FROM changes own WHERE own.side = 'client' AND own.flow_id = changes.flow_id
                AND own.correlation_id = changes.correlation_id AND own.api = changes.api
        )
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
        subject="change",
        known=_KNOWN,
    )


def _joined(names: str) -> str:
    """Return the SQL of a list of names as one text, null without any."""
    return f"nullif(array_to_string(list_sort({names}), ', '), '')"
