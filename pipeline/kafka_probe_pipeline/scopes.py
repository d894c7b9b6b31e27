"""Groups and counts connections by scope: what they have in common, as a broker, a network of peers, a workload.

Pure functions of DataFrames; this module never reads or writes.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_probe_pipeline.source import MOST

NAME_CHARACTERS = 512
"""Most characters of a scope's name. An alert has up to 15 scopes, and must stay below the size limit of a record."""
BROKER, NETWORK, WORKLOAD, ALL = "broker", "network", "workload", "all"
UNNAMED = ""
ALL_CONNECTIONS = f"{ALL} connections"
"""Scope and name of the scope that every connection is in."""


def scopes_of_connection() -> Column:
    """Return the scopes of a connection by what is known of either end: structs of `scope`, `name` and `counted`.

    counted: agents count the open connections of the scope, see `open_by_agents`.
    """
    watched = {side: F.col(side).isNotNull() for side in ("client", "server")}
    by_workload = workload(F.col("client.workload"))

    def scope(scope: str, name: Column, counted: Column) -> Column:
        return F.struct(*_named(scope, name), counted.alias("counted"))

    return F.array(
        scope(BROKER, F.coalesce("server.local", "client.peer"), watched["server"]),
        scope(NETWORK, F.coalesce(network(F.col("server.peer")), network(F.col("client.local"))), F.lit(True)),
        scope(WORKLOAD, F.coalesce(by_workload, _behind(F.col("server.peer"))), by_workload.isNotNull()),
        scope(ALL, F.lit("connections"), F.lit(True)),
    )


def open_by_agents(agents: DataFrame) -> DataFrame:
    """Return `scope`, `name` and `open_reported`: the number of open connections that the agents report.

    It is the larger count of the two sides: both count those of which both ends are watched. The name is `UNNAMED`
    for the small counts that an agent sums up.
    """
    counted = agents.select(F.explode("open").alias("of")).select("of.*")
    server_side = F.col("side") == "server"
    unnamed = F.lit(UNNAMED)
    of_client = network(F.concat("local", F.lit(":0")))
    scopes = F.array(
        F.struct(*_named(BROKER, F.when(server_side, F.col("local")))),
        F.struct(
            *_named(NETWORK, F.coalesce(F.when(server_side, F.col("peer_network")).otherwise(of_client), unnamed))
        ),
        F.struct(*_named(WORKLOAD, F.when(~server_side, F.coalesce(workload(F.col("workload")), unnamed)))),
        F.struct(*_named(ALL, F.lit("connections"))),
    )
    sum_ = F.least(F.sum(F.col("count").cast("decimal(38)")), F.lit(MOST)).cast("long")
    return (
        counted.select(F.explode(scopes).alias("of"), "side", "count")
        .where(F.col("of.name").isNotNull())
        .groupBy("of.scope", "of.name", "side")
        .agg(sum_.alias("of_side"))
        .groupBy("scope", "name")
        .agg(F.max("of_side").alias("open_reported"))
    )


def workload(of: Column) -> Column:
    """Return a workload by command and place, as `java team/orders-7f` or `java kafka.service`; null if unknown."""
    pod = F.concat_ws("/", of["namespace"], of["pod"])
    container = F.coalesce(of["container_name"], F.substring(of["container_id"], 1, 12))
    place = F.coalesce(F.when(of["pod"].isNotNull(), pod), of["unit"], container, of["cgroup"])
    return F.when(of["comm"].isNotNull(), F.concat_ws(" ", of["comm"], place))


def network(address: Column) -> Column:
    """Return the network of `address:port`: /24, or /64 of IPv6, as the agents write it."""
    v4 = F.regexp_extract(address, r"^(\d+\.\d+\.\d+)\.\d+:\d+$", 1)
    v6 = F.regexp_extract(address, r"^\[(.+)\]:\d+$", 1)
    return F.when(v4 != "", F.concat(v4, F.lit(".0/24"))).when(v6 != "", F.concat(_first_64_bits(v6), F.lit("::/64")))


def _first_64_bits(v6: Column) -> Column:
    """Return the first four groups of an IPv6 address, without the zeros at their end."""

    def groups(text: Column) -> Column:
        return F.filter(F.split(text, ":"), lambda group: group != "")

    before, after = groups(F.substring_index(v6, "::", 1)), groups(F.regexp_extract(v6, "::(.*)", 1))
    zeros = F.array_repeat(F.lit("0"), F.lit(8) - F.size(before) - F.size(after))
    first = F.array_join(F.slice(F.concat(before, zeros, after), 1, 4), ":")
    return F.regexp_replace(first, r"(?:(?:^|:)0)+$", "")


def _named(scope: str, name: Column) -> tuple[Column, Column]:
    return F.lit(scope).alias("scope"), F.substring(name, 1, NAME_CHARACTERS).alias("name")


def _behind(address: Column) -> Column:
    return F.concat(F.lit("behind "), F.regexp_replace(address, r":\d+$", ""))
