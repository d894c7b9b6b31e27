"""who.py on events as agents write them: what it joins, and what it leaves out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.builders.events import agent, flow, opened
from tests.lab.network import SCRIPTS

FLOW_ID = "00000001ffffffff"
CLIENT_END: dict[str, Any] = {"side": "client", "flow_id": FLOW_ID, "local": "10.57.1.11:44724"}
ACCEPTED = opened(side="server", flow_id=FLOW_ID, peer="10.57.2.2:7935")
WORKLOAD = {"pid": 42, "comm": "python", "cgroup": "/system.slice/orders-producer.service"}
CLIENT = {"id": "orders-producer", "software_name": "kafka-python", "software_version": "3.0.12"}


def table(*events: dict[str, Any]) -> list[list[str]]:
    """Return the rows below the headings, for these events in records of one event each."""
    records = "\n\n".join(json.dumps(event) for event in events)
    who = subprocess.run(
        [sys.executable, SCRIPTS / "who.py"], input=records, capture_output=True, text=True, check=True
    )
    return [line.split() for line in who.stdout.splitlines()[1:]]


def test_both_ends_are_one_row_whatever_came_first_and_whatever_became_known_later() -> None:
    connected = opened(**CLIENT_END, node="client-1", workload=WORKLOAD, client=None)
    spoke = flow(**CLIENT_END, workload=None, client=CLIENT)
    where = ["10.57.2.2:7935", "10.57.1.11:44724", FLOW_ID, "client-1"]
    who = ["42", "python", "/system.slice/orders-producer.service", "orders-producer", "kafka-python", "3.0.12"]
    assert table(connected, ACCEPTED, spoke) == [[*where, *who]]


def test_names_are_text() -> None:
    names: dict[str, Any] = {"client": {"id": "\x1b]0;x\x07" + "a" * 99}, "workload": {**WORKLOAD, "comm": "\u202eb\n"}}
    hostile = opened(**CLIENT_END, **names)
    *_, comm, _, client_id, _ = table(ACCEPTED, hostile)[0]
    assert (comm, client_id) == (r"\u202eb\n", r"\x1b]0;x\x07" + "a" * 58)


def test_where_no_agent_watches_the_client_its_columns_are_dashes() -> None:
    assert table(ACCEPTED) == [["10.57.2.2:7935", "-", FLOW_ID, *"------"]]


def test_the_agents_own_connections_and_the_agents_are_no_rows() -> None:
    assert table(agent(side=None, flow_id=None), ACCEPTED, {**ACCEPTED, "internal": True}) == []
