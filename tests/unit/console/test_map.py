"""The command `map`: who talks to whom, as a table or a graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_probe.errors import UsageError
from kafka_probe_console.map_command import connection_map
from tests.builders.reported_ends import end
from tests.builders.tables import write_rows
from tests.lab.answers import FirstUse, answered, asked, documented_flags

ago = FirstUse().ago
HOSTILE = 'a"];b\\n&#10;\x1b[31m'


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables of two clients of one broker, of which one was watched at the broker's end only."""
    path = tmp_path_factory.mktemp("tables")
    ends = [
        *(end(side, side, "billing", ago(minutes=5), flow_id="a", found="start") for side in ("client", "server")),
        end("client", "2", "billing", ago(minutes=4), flow_id="b", found="start"),
        end("server", "2", "billing", ago(minutes=4), flow_id="b", found="start"),
        end("server", "3", HOSTILE, ago(minutes=3), flow_id="c", found="start"),
    ]
    write_rows(path, "opens", ends)
    return path


def test_each_client_and_broker_is_a_row_with_the_number_of_connections(tables: Path) -> None:
    watched, unwatched = answered(connection_map, tables)
    assert [watched[name] for name in ("workload", "client", "node", "open")] == ["billing-7f", "billing", "node-1", 2]
    assert [unwatched[name] for name in ("workload", "client", "node", "open")] == [None, HOSTILE, None, 1]


def test_a_graph_has_each_broker_once_and_names_cannot_add_to_it(tables: Path) -> None:
    broker = answered(connection_map, tables)[0]["broker"]
    assert asked(connection_map, tables, "--dot").stdout.splitlines() == [
        "digraph kafka {",
        "  rankdir=LR",
        r'  client0 [label="billing-7f\nbilling\nnode-1"]',
        f'  broker0 [label="{broker}", shape=box]',
        '  client0 -> broker0 [label="2"]',
        r'  client1 [label="a\"];b\\n&amp;#10;\\x1b[31m"]',
        '  client1 -> broker0 [label="1"]',
        "}",
    ]


def test_a_graph_has_no_other_form(tables: Path) -> None:
    for flags in (["--json"], ["--csv"], ["--columns", "client"]):
        with pytest.raises(UsageError, match="Use --dot without --columns, --json and --csv"):
            asked(connection_map, tables, "--dot", *flags)


def test_documented_commands_find_connections(tables: Path) -> None:
    for flags in documented_flags("map", "README.md", "docs/guide/answers.md"):
        assert asked(connection_map, tables, *flags).exit_code == 0
