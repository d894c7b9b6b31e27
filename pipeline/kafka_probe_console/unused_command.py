"""The command `kafka-probe unused`: which topics nobody reads, or nobody uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kafka_probe_console.answer_command import configuration_file, prints_view
from kafka_probe_console.columns import columns
from kafka_probe_console.period import Period
from kafka_probe_console.traffic import KNOWN_TOPICS, bounded, topic_traffic
from kafka_probe_console.views import AnswerView
from kafka_probe_console.watched_brokers import WatchedBroker, watched_brokers

if TYPE_CHECKING:
    from kafka_probe_console.cluster_topics import Cluster
    from kafka_probe_console.tables import OpenTables

_NO_READER = """(
    client SIMILAR TO 'broker-[0-9]+-fetcher-[0-9]+' OR client = 'console-consumer' OR "group" GLOB 'console-consumer-*'
)"""
"""The condition that a row of traffic is of a replica, or of kafka-console-consumer."""
_COPIES = """(
    client GLOB 'connector-consumer-*' OR "group" GLOB 'connect-*' OR lower(concat_ws(' ', client, "group"))
        SIMILAR TO '.*(mirrormaker|mirrorsource|mirror-maker).*'
)"""
"""The condition that a row of traffic is of MirrorMaker, or of a sink connector of Kafka Connect."""
_REFUSED = "clients that read it get errors"
_AWAY = WatchedBroker("a broker of a partition, or its leader, is away")


@click.command(
    epilog="""\b
Examples:
  kafka-probe unused --tables kafka-probe-output --bootstrap-servers kafka-1:9092
  kafka-probe unused --tables kafka-probe-output --bootstrap-servers kafka-1:9092 --filter 'state = unread'
"""
)
@click.option("--bootstrap-servers", metavar="HOST:PORT,...", help="brokers of the cluster, which name its topics")
@prints_view(since="30d")
def unused(tables: OpenTables, period: Period, bootstrap_servers: str | None) -> AnswerView:
    """Print the topics that nobody reads, or nobody uses.

    The brokers are asked which topics exist. `unread`: somebody wrote to it. `copied`: only MirrorMaker or Kafka
    Connect read it. `unused`: nobody wrote or read. `not known`: agents do not see all clients of the brokers that have
    its partitions. The file of --config may also have the brokers and their security settings, such as
    `sasl_mechanism`.
    """
    from kafka_probe_console.cluster_topics import cluster_of

    return topics_without_reader(tables, period, cluster_of(bootstrap_servers, configuration_file()))


def topics_without_reader(tables: OpenTables, period: Period, cluster: Cluster) -> AnswerView:
    """Return the topics of a cluster that no ordinary client read in the period."""
    traffic, values = topic_traffic(tables, period)
    watched = watched_brokers(tables, period, cluster.brokers)
    rows = list[tuple[str, str | None, int, str | None, float]]()
    for topic in cluster.topics:
        brokers = [watched.get(broker, _AWAY) for broker in sorted(topic.brokers)] or [_AWAY]
        problem = next((broker.problem for broker in brokers if broker.problem), None)
        rows.append((topic.name, topic.topic_id, topic.partitions, problem, min(broker.percent for broker in brokers)))
    columns_of = [*map(list, zip(*rows, strict=True))] or [[] for _ in range(5)]
    sql = f"""
        WITH topics AS (
            SELECT unnest(?::VARCHAR[]) AS topic, unnest(?::VARCHAR[]) AS topic_id, unnest(?::BIGINT[]) AS partitions,
                unnest(?::VARCHAR[]) AS problem, unnest(?::DOUBLE[]) AS percent
        ),
        uses AS (
            SELECT coalesce(ids.topic, traffic.topic) AS topic, client, "group", workload, bytes, last,
                use = 'writes' AND coalesce(bytes > 0, true) AS writes,
                use = 'reads' AND NOT coalesce({_NO_READER}, false) AS tries,
                tries AND coalesce(bytes > 0 OR errors < requests, true) AS reads, coalesce({_COPIES}, false) AS copies
            FROM ({traffic}) traffic LEFT JOIN topics ids ON traffic.topic = ids.topic_id
        ),
        of_topics AS (
            SELECT topic, count(*) FILTER (reads AND NOT copies) AS readers, count(*) FILTER (tries) AS tried,
                count(*) FILTER (reads AND copies) AS copiers, string_agg(
                    DISTINCT coalesce(client, "group"), ', ' ORDER BY coalesce(client, "group")
                ) FILTER (reads AND copies) AS copied_by,
                count(DISTINCT (client, workload)) FILTER (writes) AS writers,
                {bounded("sum(bytes) FILTER (writes)")} AS written_bytes, max(last) FILTER (writes) AS last
            FROM uses GROUP BY topic
        )
        SELECT topic, CASE
                WHEN problem IS NOT NULL OR (tried > 0 AND copiers = 0) THEN 'not known' WHEN copiers > 0 THEN 'copied'
                WHEN writers > 0 THEN 'unread' ELSE 'unused'
            END AS state,
            writers, written_bytes, last, copied_by, percent AS watched_percent,
            coalesce(problem, if(tried > 0 AND copiers = 0, '{_REFUSED}', NULL)) AS reason, partitions
        FROM topics LEFT JOIN of_topics USING (topic) WHERE coalesce(readers, 0) = 0
    """
    numbers = {"partitions", "writers", "written_bytes", "watched_percent"}
    return AnswerView(
        sql=sql,
        values=(*columns_of, *values),
        columns=columns(
            *("topic", "state", "written_bytes", "last", "writers", "watched_percent", "copied_by", "partitions"),
            "reason",
            numbers=numbers,
            times={"last"},
        ),
        sort="state",
        time="last",
        subject="topic without a reader",
        known=KNOWN_TOPICS,
        known_subject="used topic",
    )
