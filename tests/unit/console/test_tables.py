"""The tables as DuckDB gets them: from any path, and narrowed by lists of any length."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kafka_probe_console.tables import one_of, opened


@pytest.mark.parametrize("name", ["tables", "a b#c", "ü?", "with[1]", "a|b^c"])
def test_a_table_is_read_from_any_path(tmp_path: Path, name: str) -> None:
    write_deltalake(tmp_path / "written" / "opens", pa.table({"flow_id": ["a"]}))
    (tmp_path / "written").rename(tmp_path / name)
    with opened(str(tmp_path / name)) as tables:
        tables.require("opens")
        assert [*tables.rows("SELECT flow_id FROM opens")] == [("a",)]


@pytest.mark.parametrize("number", [1, 50, 51, 500, 501, 10_000])
def test_a_condition_of_many_values_leaves_out_none_of_them(tmp_path: Path, number: int) -> None:
    flows = [f"{n:05}" for n in range(100, 100 + number)]
    write_deltalake(tmp_path / "opens", pa.table({"flow_id": ["00000", *flows, "99999", None]}))
    with opened(str(tmp_path)) as tables:
        tables.require("opens")
        narrowed = tables.rows("SELECT flow_id FROM opens ORDER BY 1", only={"opens": one_of("flow_id", flows * 2)})
        assert [flow for (flow,) in narrowed] == flows
