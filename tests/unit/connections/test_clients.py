"""A client's group is known on all its connections, although only one of them contains it."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from kafka_probe.connections.connection import Connection
from kafka_probe.connections.tracker import Tracker
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, Facts, Status
from kafka_probe.workloads import NOBODY, WorkloadResolver
from tests.builders.events import reported
from tests.builders.samples import opened

METADATA, OFFSET_COMMIT, HEARTBEAT, DESCRIBE_GROUPS = (
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.HEARTBEAT,
    ApiKey.DESCRIBE_GROUPS,
)
CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT, STREAMS_GROUP_HEARTBEAT = (
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_HEARTBEAT,
)
RESOLVER = WorkloadResolver()


class Watched:
    """Connections of clients, on one side."""

    def __init__(self, *, server_side: bool) -> None:
        self.tracker = Tracker(RESOLVER)
        self._server_side = server_side
        self._conns = count(1)

    def connect(
        self, client_id: str = "billing", *, pid: int = 1000, host: str = "10.0.0.9", library: str = "librdkafka"
    ) -> Connection:
        conn = next(self._conns)
        ends: dict[str, Any] = {"local": ("10.0.0.1", 9092), "peer": (host, 40000 + conn)}
        self.tracker.take(opened(conn, server_side=self._server_side, tgid=pid, **ends)[0])
        connection = self.tracker.get(conn)
        assert connection
        hello = ((Fact.CLIENT_ID, client_id), (Fact.SOFTWARE_NAME, library), (Fact.SOFTWARE_VERSION, "2.0"))
        self.tracker.learn(connection, Facts(False, ApiKey.API_VERSIONS, 3, Status.COMPLETE, values=hello))
        return connection

    def ask(self, connection: Connection, api_key: int, group: str | None = None) -> str | None:
        """Learn from a request on the connection; return the group that the request has."""
        values = ((Fact.CLIENT_ID, connection.client_id or ""), *(((Fact.GROUP, group),) if group else ()))
        facts = Facts(False, api_key, 0, Status.COMPLETE, values=values)
        self.tracker.learn(connection, facts)
        return connection.group(api_key, facts.groups)


@pytest.fixture(params=["server", "client"])
def watched(request: pytest.FixtureRequest) -> Watched:
    return Watched(server_side=request.param == "server")


@pytest.mark.parametrize(
    "api_key",
    [OFFSET_COMMIT, HEARTBEAT, CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT, STREAMS_GROUP_HEARTBEAT],
)
def test_a_fetch_has_the_group_that_its_client_named_on_another_connection(watched: Watched, api_key: int) -> None:
    coordinator, fetcher = watched.connect(), watched.connect()
    assert watched.ask(fetcher, ApiKey.FETCH) is None
    assert watched.ask(coordinator, api_key, "etl") == "etl"
    assert watched.ask(fetcher, ApiKey.FETCH) == "etl"


def test_other_requests_have_the_group_that_they_name_and_no_other(watched: Watched) -> None:
    connection = watched.connect()
    watched.ask(connection, HEARTBEAT, "etl")
    assert watched.ask(connection, METADATA) is None


def test_a_client_that_asks_about_groups_is_a_member_of_none(watched: Watched) -> None:
    connection = watched.connect()
    assert watched.ask(connection, DESCRIBE_GROUPS, "etl") == "etl"
    assert watched.ask(connection, ApiKey.FETCH) is None


def test_a_client_of_two_groups_has_none(watched: Watched) -> None:
    coordinators, fetcher = [watched.connect(), watched.connect()], watched.connect()
    for coordinator, group in zip(coordinators, ("etl", "audit"), strict=True):
        watched.ask(coordinator, HEARTBEAT, group)
    assert watched.ask(fetcher, ApiKey.FETCH) is None


def test_another_client_id_is_another_client(watched: Watched) -> None:
    watched.ask(watched.connect("billing"), HEARTBEAT, "etl")
    assert watched.ask(watched.connect("audit"), ApiKey.FETCH) is None


def test_on_the_client_side_another_process_is_another_client_wherever_it_connects_from() -> None:
    watched = Watched(server_side=False)
    coordinator = watched.connect(pid=1000)
    watched.ask(coordinator, HEARTBEAT, "etl")
    assert watched.ask(watched.connect(pid=1001), ApiKey.FETCH) is None
    assert watched.ask(watched.connect(pid=1000, host="10.0.0.77", library="other"), ApiKey.FETCH) == "etl"


def test_on_the_server_side_another_host_or_library_is_another_client() -> None:
    watched = Watched(server_side=True)
    coordinator = watched.connect()
    watched.ask(coordinator, HEARTBEAT, "etl")
    assert watched.ask(watched.connect(host="10.0.0.77"), ApiKey.FETCH) is None
    assert watched.ask(watched.connect(library="kafka-python"), ApiKey.FETCH) is None
    assert watched.ask(watched.connect(), ApiKey.FETCH) == "etl"


def test_a_group_is_forgotten_with_the_last_connection_of_its_client(watched: Watched) -> None:
    coordinator, fetcher = watched.connect(), watched.connect()
    watched.ask(coordinator, HEARTBEAT, "etl")
    watched.ask(fetcher, ApiKey.FETCH)
    for connection in (coordinator, fetcher):
        assert watched.ask(fetcher, ApiKey.FETCH) == "etl"
        watched.tracker.gone(connection.identity.conn)
    reported(watched.tracker)
    del coordinator, fetcher, connection
    assert watched.ask(watched.connect(), ApiKey.FETCH) is None


def test_connections_of_unknown_processes_are_clients_of_their_own() -> None:
    watched = Watched(server_side=False)
    member, fetcher = watched.connect(), watched.connect()
    for connection in (member, fetcher):
        connection.workload = NOBODY
    watched.ask(member, HEARTBEAT, "etl")
    assert watched.ask(fetcher, ApiKey.FETCH) is None
    assert watched.ask(member, ApiKey.FETCH) == "etl"
