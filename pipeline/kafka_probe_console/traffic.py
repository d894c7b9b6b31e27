"""The SQL of traffic: sums of rows, and what clients wrote to topics and read from them.

Two ends may report a client, which counts once, by its own ends. If the brokers' ends have more requests or bytes of
the same key, such as client id and group, than 110 % and ten requests of those at the client's ends, some connections
are watched at the broker only: the difference is a row of its own. Smaller differences are the seconds between the
reports of both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kafka_probe_console.end_columns import OWNER
from kafka_probe_console.period import Period
from kafka_probe_console.views import within

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

SUMS = ("requests", "records", "bytes", "refused_records", "errors")
"""Columns that add up, without what was refused; null if a sum overflowed, or, of `records`, if some were not read."""
_TIMES = "epoch_us(min(window_start)), epoch_us(least(max(window_end), now()))"
KNOWN_TOPICS = f"SELECT count(DISTINCT coalesce(topic, topic_id)), {_TIMES} FROM traffic WHERE level = 'topic'"
KNOWN_CLIENTS = f"SELECT count(DISTINCT coalesce(client_id, '')), {_TIMES} FROM traffic"
FIRST, LAST = "least(window_start, now())", "least(window_end, now())"
"""The times of a row of `traffic`, of which a wrong or forged clock makes none later than now."""
LIBRARY = "nullif(concat_ws(' ', software_name, software_version), '')"
_MORE = "1.1::DOUBLE"
"""The brokers' ends count if they have more than so many times the requests of the client's own ends."""
_FEW = 10  # requests
_OVERFLOWED = 2**63 - 1


def bounded(total: str) -> str:
    """Return a sum as an integer of 64 bits; null if it is one that overflowed, see `kafka_probe_pipeline.sums`."""
    return f"nullif(greatest(least({total}, {_OVERFLOWED}), -{_OVERFLOWED}), {_OVERFLOWED})::BIGINT"


def count_of(counts: str, *keys: object) -> str:
    """Return the sum of the counts of all keys, or of some; 0 without any. A forged one does not overflow."""
    of_keys = ", ".join(f"'{key}'" for key in keys)
    entries = f"list_filter({counts}, lambda one: one.key IN ({of_keys}))" if keys else counts
    return f"least(coalesce(list_sum(list_transform({entries}, lambda one: one.value::DOUBLE)), 0), 9e18)::BIGINT"


def of_one_side(*key: str) -> str:
    """Return a clause that keeps the rows of one side: the client's, unless the server's saw more requests."""
    most = f"requests * if(side = 'client', {_MORE}, 1) DESC NULLS LAST, side"
    return f"QUALIFY row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {most}) = 1"


def same(left: str, right: str, names: Iterable[str]) -> str:
    """Return the condition that rows of two relations agree in columns, of which both may be null."""
    return " AND ".join(f'{left}."{name}" IS NOT DISTINCT FROM {right}."{name}"' for name in names)


def counted_once(uses: str, key: Sequence[str], own: Sequence[str], sums: Sequence[str]) -> str:
    """Return a relation in which each client counts once: key, own, side, sums, first and last.

    uses: a relation with these and side, of which requests is one of the sums. own: what the client's end alone knows.
    side: the side that the sums are of.
    """
    keys, others = (", ".join(f'"{name}"' for name in names) for names in (key, own))
    total = ", ".join(f"sum({name}) AS {name}" for name in sums)
    rest = "of_broker.{0} - least(coalesce(own.{0}, 0), of_broker.{0})"  # null stays null
    more = "of_broker.{0} > own.{0} * " + _MORE + f" + {_FEW} * own.{{0}} / greatest(own.requests, 1)"
    watched_in_part = " OR ".join(more.format(name) for name in ("requests", "bytes") if name in sums)
    return f"""(
        WITH of_ends AS (
            SELECT {keys}, {others}, side, {total}, min(first) AS first, max(last) AS last FROM {uses} GROUP BY ALL
        ),
        of_sides AS (
            SELECT {keys}, side, {total}, min(first) AS first, max(last) AS last FROM of_ends GROUP BY {keys}, side
        )
        SELECT {keys}, {others}, 'client' AS side, {", ".join(f"{bounded(name)} AS {name}" for name in sums)},
            first, last
        FROM of_ends WHERE side = 'client'
        UNION ALL BY NAME
        SELECT {", ".join(f'of_broker."{name}"' for name in key)}, 'server' AS side,
            {", ".join(f"{bounded(rest.format(name))} AS {name}" for name in sums)}, of_broker.first, of_broker.last
        FROM (FROM of_sides WHERE side = 'server') of_broker LEFT JOIN (FROM of_sides WHERE side = 'client') own
            ON {same("of_broker", "own", key)}
        WHERE own.requests IS NULL OR {watched_in_part}
    )"""


def workload(tables: OpenTables) -> str:
    """Return the name of the workload of a row of `traffic`. Earlier releases wrote fewer names."""
    names = tables.columns("traffic")
    return f"coalesce({', '.join(name for name in OWNER if name in names)}, NULL)"


def topic_names(tables: OpenTables) -> str:
    """Return a relation of topic_id and name."""
    if tables.add("topic_names"):
        return "(SELECT topic_id, any_value(topic) AS name FROM topic_names GROUP BY topic_id)"
    return "(SELECT NULL::VARCHAR AS topic_id, NULL::VARCHAR AS name WHERE false)"


def topic_traffic(tables: OpenTables, period: Period) -> tuple[str, tuple[object, ...]]:
    """Return a relation with its values: topic, use, client, group, workload, node, side, SUMS, first and last.

    use: writes or reads; side: of the ends that the sums are of; workload, node: null at the broker's.
    """
    tables.require("traffic")
    where, values = within("window_start", period)
    sql = f"""
        WITH uses AS (
            SELECT coalesce(topic, name, topic_id) AS topic, if(api = 'Produce', 'writes', 'reads') AS use,
                client_id AS client, "group", side, {FIRST} AS first, {LAST} AS last, requests,
                records - coalesce(refused_records, 0) AS records, record_bytes - coalesce(refused_bytes, 0) AS bytes,
                coalesce(uncounted_bytes, 0) AS unread, refused_records, {count_of("errors")} AS errors,
                if(side = 'client', {workload(tables)}, NULL) AS workload, if(side = 'client', node, NULL) AS node
            FROM traffic LEFT JOIN {topic_names(tables)} USING (topic_id)
            WHERE {where} AND level = 'topic' AND api IN ('Produce', 'Fetch', 'ShareFetch')
        )
        SELECT * EXCLUDE (unread) REPLACE (if(unread > 0, NULL, records) AS records)
        FROM {counted_once("uses", ("topic", "use", "client", "group"), ("workload", "node"), (*SUMS, "unread"))}
    """
    return sql, values
