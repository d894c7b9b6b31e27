"""The program of the matrix of kernels: its comparison of backends, and its results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kernel import __main__ as matrix_program
from tests.kernel import archive, matrix
from tests.kernel.archive import kernel
from tests.kernel.matrix import Run, Seen, Tried, differences
from tests.lab.processes import LabError

pytestmark = pytest.mark.root

SERIES = "6.12"


def seen(backend: str, *frames: str, **lost: int) -> Seen:
    return Seen(Run(backend, "ring", "passed"), {"test_split": {"seen": [[False, *frames]], "lost": lost}})


def test_backends_that_see_something_else_are_named() -> None:
    alike = [seen("fentry", "a", "b"), seen("kprobe", "a", "b")]
    assert list(differences(alike)) == []
    (difference,) = differences([*alike, seen("tracepoint", "a")])
    assert difference.startswith("test_split: tracepoint-ring saw 1 of [False, 'a'] (lost: {}), ")
    assert difference.endswith("fentry-ring saw 1 of [False, 'a', 'b'] (lost: {})")
    assert list(differences([*alike, seen("tracepoint", "a", malformed=1)])) != []


def test_a_backend_that_says_what_it_could_not_read_may_see_less() -> None:
    assert list(differences([seen("fentry", "a", "b"), seen("tracepoint", "a", buffer_unreadable=1)])) == []


def test_a_backend_that_is_tried_again_replaces_its_own_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(matrix_program, "RESULT", tmp_path / "kernels.json")

    def kept(package_version: str, *runs: Run) -> list[list[str]]:
        matrix_program.keep(Tried(SERIES, "6.12-amd64", package_version, runs, ()))
        (found,) = json.loads(matrix_program.RESULT.read_text())["kernels"]
        return [[run["backend"], run["buffer"], run["result"]] for run in found["runs"]]

    first = [Run(backend, "ring", "failed") for backend in ("fentry", "kprobe")]
    assert kept("6.12.1", *first) == [["fentry", "ring", "failed"], ["kprobe", "ring", "failed"]]
    again = Run("fentry", "ring", "passed")
    assert kept("6.12.1", again) == [["fentry", "ring", "passed"], ["kprobe", "ring", "failed"]]
    assert kept("6.12.2", again) == [["fentry", "ring", "passed"]]


@pytest.mark.parametrize(("passed", "result"), [(2, "passed"), (0, "failed")])
def test_only_passed_tests_count(passed: int, result: str) -> None:
    outcomes = {**{f"test_{n}": "passed" for n in range(passed)}, "test_skipped": "skipped"}
    report = {"status": 0, "failures": {}, "tests": outcomes, "seconds": 1.0, "instructions": 5, "seen": {}}
    run = matrix._read("fentry", "perf", json.dumps(report).encode(), Path("log")).run
    assert (run.result, run.tests) == (result, passed)


def test_without_the_keys_of_the_archive_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(archive, "CACHE", tmp_path)
    monkeypatch.setattr(archive, "KEYRING", tmp_path / "keyring.gpg")
    with pytest.raises(LabError, match=r"keyring.gpg is missing: install debian-archive-keyring$"):
        kernel(SERIES)
    assert list(tmp_path.iterdir()) == []
