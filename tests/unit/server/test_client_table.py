"""Flows become clients: who they are, what they do, and when they are dropped."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_probe.server import client_table
from kafka_probe.server.client_table import SILENT_US, ApiUse, ClientEntry, ClientKey, ClientTable, TopicUse
from tests.builders.bounded_tables import grown_by
from tests.builders.events import NOW_US, SECOND_US, flow, passed, topic, workload


def clients(*events: Any) -> list[tuple[ClientKey, ClientEntry]]:
    found = ClientTable()
    found.add(events)
    return list(found)


def test_connections_of_one_client_are_one_client() -> None:
    later = flow(NOW_US + SECOND_US, local="10.0.0.7:40002", api="Metadata", topics=[topic("payments")])
    ((key, client),) = clients(flow(topics=[topic()]), later)
    assert (key.id, key.address, key.software_name) == ("billing", "10.0.0.7", "librdkafka")
    assert (client.since, client.ts) == (NOW_US - 5 * SECOND_US, NOW_US + SECOND_US)
    assert (client.requests, client.request_bytes, client.response_bytes, client.records) == (20, 8000, 1800, 100)
    assert client.topics.keys() == {"orders", "payments"}


def test_a_client_uses_the_topics_that_it_asked_for_and_not_all_that_answers_name() -> None:
    named = [topic(), topic("all-there-are", requests=0, bytes=0, records=0)]
    ((_, client),) = clients(flow(api="Metadata", topics=named))
    assert client.topics.keys() == {"orders"}


def test_at_the_brokers_end_the_address_is_that_of_the_peer() -> None:
    ((key, _),) = clients(flow(side="server", peer="[2001:db8::7]:40001", local="[2001:db8::1]:9092"))
    assert key.address == "[2001:db8::7]"


@pytest.mark.parametrize(
    "other",
    [
        {"client": {"id": "other", "software_name": "librdkafka", "software_version": "2.5"}},
        {"client": {"id": "billing", "software_name": "kafka-python", "software_version": "3"}},
        {"workload": workload(pid=8)},
        {"workload": workload(start_time=2)},
        {"side": "server"},
        {"local": "10.0.0.8:40001"},
    ],
)
def test_what_tells_clients_apart(other: dict[str, Any]) -> None:
    assert len(clients(flow(), flow(**other))) == 2


@pytest.mark.parametrize(
    ("apis", "kind"),
    [
        (("Metadata", "Produce"), "producer"),
        (("JoinGroup", "Fetch"), "consumer"),
        (("ShareFetch",), "consumer"),
        (("Fetch", "Produce", "CreateTopics"), "producer+consumer"),
        (("DescribeConfigs", "Metadata"), "admin"),
        (("BrokerHeartbeat", "Fetch"), "broker"),
        (("Metadata",), "other"),
        ((None,), "other"),
    ],
)
def test_a_client_is_what_it_does(apis: tuple[str | None, ...], kind: str) -> None:
    ((_, client),) = clients(*(flow(api=api) for api in apis))
    assert client.type == kind


def test_who_fetches_as_a_replica_is_a_broker() -> None:
    ((_, client),) = clients(flow(api="Fetch", replica_id=0), flow(api="Fetch"))
    assert client.type == "broker"


def test_another_kafka_probe_is_internal() -> None:
    ((_, client),) = clients(flow(internal=True, api=None))
    assert client.type == "internal"


def test_the_group_is_the_last_that_was_named() -> None:
    ((_, client),) = clients(flow(group="a"), flow(group="b"), flow(group=None))
    assert client.group == "b"


def test_what_a_client_writes_and_reads_is_known_by_topic() -> None:
    both = [topic(bytes=100, records=3), topic("payments", bytes=7, records=1)]
    ((_, client),) = clients(flow(topics=both), flow(api="Fetch", topics=both[:1]), flow(api="Metadata", topics=both))
    assert client.topics == {"orders": TopicUse(100, 3, 100, 3), "payments": TopicUse(7, 1, 0, 0)}


def test_versions_errors_and_the_rate_of_the_last_interval_are_known() -> None:
    later = NOW_US + SECOND_US
    ((_, client),) = clients(
        flow(errors={"6": 1}),
        flow(api_version=7, errors={"6": 2, "3": 1}),
        flow(later, api="Metadata", api_version=12, since=later - 2 * SECOND_US),
        flow(later, api=None, api_version=None, since=later - 2 * SECOND_US),
    )
    assert client.apis == {"Produce": ApiUse(7, 9, 20), "Metadata": ApiUse(12, 12, 10)}
    assert client.errors == {"NOT_LEADER_OR_FOLLOWER": 3, "UNKNOWN_TOPIC_OR_PARTITION": 1}
    assert (client.last_requests, client.last_interval_us) == (20, 2 * SECOND_US)


def test_a_client_has_a_number_of_its_own() -> None:
    numbers = {key.number for found in (clients(flow()), clients(flow(requests=3))) for key, _ in found}
    other = {key.number for key, _ in clients(flow(local="10.0.0.8:1"), flow(workload=workload(pid=9)))}
    assert len(numbers) == 1
    assert len(numbers | other) == 3


@pytest.mark.parametrize("step_us", [0, 2 * SILENT_US, -2 * SILENT_US])
def test_a_client_is_forgotten_after_an_hour_of_silence_whatever_the_wall_clock_does(step_us: int) -> None:
    found = ClientTable()
    found.add([flow(), passed(SECOND_US), flow(NOW_US + step_us, local="10.0.0.8:1")])
    found.add([passed(SILENT_US - SECOND_US, until_us=NOW_US + step_us)])
    assert len(list(found)) == 2
    found.add([passed(SECOND_US, until_us=NOW_US + step_us)])
    assert [key.address for key, _ in found] == ["10.0.0.8"]


def test_of_too_many_clients_those_that_spoke_last_are_kept() -> None:
    two = ClientTable()
    two.add([flow(local=f"10.0.0.{n}:1") for n in (1, 2)])
    found = ClientTable(two.held_bytes)
    found.add([flow(local=f"10.0.0.{n}:1") for n in (1, 2, 1, 3)])
    assert [key.address for key, _ in found] == ["10.0.0.1", "10.0.0.3"]


def test_topics_of_all_clients_together_are_bounded() -> None:
    found = ClientTable(200_000)
    for host in range(50):
        found.add([flow(local=f"10.0.0.{host}:1", topics=[topic(f"t{host}-{n}") for n in range(100)])])
    assert 100_000 < found.held_bytes <= 200_000
    assert sum(len(client.topics) for _, client in found) * 200 < 200_000
    assert [key.address for key, _ in found][-1] == "10.0.0.49"


@pytest.mark.parametrize("char", ["x", "\u00e9"])
@pytest.mark.parametrize("topics", [0, 5, 100])
def test_clients_take_no_more_than_was_reckoned(topics: int, char: str) -> None:
    found = ClientTable()

    def text(kind: str, n: int) -> str:
        return f"{kind}{n}".ljust(256, char)

    def add_all() -> ClientTable:
        apis = [f"Api{n}" for n in range(topics)]
        errors = {str(code): 1 for code in range(1, 20)}
        for n in range(40):
            client = {"id": text("id", n), "software_name": text("name", n), "software_version": text("version", n)}
            named = [topic(text("topic", 1000 * n + t)) for t in range(topics)]
            of_client: dict[str, Any] = {
                "local": f"10.0.0.{n}:1",
                "client": client,
                "group": text("group", n),
                "errors": errors,
            }
            found.add([flow(**of_client, topics=named), *(flow(**of_client, api=api) for api in apis)])
        return found

    assert grown_by(add_all, 1) < found.held_bytes
    while list(found):
        found._drop_oldest()
    assert found.held_bytes == 0


def test_a_process_that_gets_names_has_them_in_all_its_clients_and_leaves_no_bytes_behind() -> None:
    found, named = ClientTable(), workload(pod="orders-0")
    found.add([flow(), flow(workload=workload(pid=8)), flow(workload=named, local="10.0.0.8:1")])
    assert [client.workload["pod"] for key, client in found if key.pid == 7] == ["orders-0", "orders-0"]
    while list(found):
        found._drop_oldest()
    assert found.held_bytes == 0


def test_flows_beyond_the_budget_are_no_client() -> None:
    assert list(clients(flow(conn_id=None, local=None, peer=None))) == []


def test_a_client_that_names_topics_without_end_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_table, "TOPICS_KEPT", 3)
    ((_, client),) = clients(flow(topics=[topic(f"t{n}") for n in range(9)]))
    assert client.topics.keys() == {"t0", "t1", "t2"}
    assert client.records == 450
