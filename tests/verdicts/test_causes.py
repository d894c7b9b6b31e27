"""A small matrix: every cause once, each with another library or listener, and its verdicts."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.programs.verdicts.__main__ import shortcomings, verdicts
from tests.programs.verdicts.causes import CAUSES

pytestmark = [
    pytest.mark.root,
    pytest.mark.broker,
    pytest.mark.spark,
    # py4j leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_every_cause_is_named_and_no_end_alone_is_wrong(tmp_path: Path) -> None:
    cells = [(of := cause.cells())[number % len(of)] for number, cause in enumerate(CAUSES)]
    assert not shortcomings(cells, verdicts(cells, count=3, workers=4, directory=tmp_path))
    gc.collect()  # what py4j leaves: later nobody ignores it
