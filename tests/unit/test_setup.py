"""`make setup` that cannot finish names what to install and leaves everything as it was."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534
TOOLS = "apt-get bash cat cmp cp chmod dirname flock id mkdir mktemp mv rm sed sha256sum tail"


@pytest.fixture
def checkout() -> Iterator[Path]:
    """Copy what setup reads into a folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        checkout = Path(folder) / "checkout"
        shutil.copytree(ROOT / "scripts", checkout / "scripts")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, checkout)
        yield checkout


@pytest.fixture
def path(checkout: Path) -> Path:
    """Return a search path with all that setup calls except Java, so that something is missing on any machine."""
    path = checkout.parent / "path"
    path.mkdir()
    for tool in TOOLS.split():
        if found := shutil.which(tool):
            (path / tool).symlink_to(found)
    return path


def setup(checkout: Path, path: Path, user: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", checkout / "scripts" / "setup.sh"],
        env={"PATH": str(path)},
        user=user,
        capture_output=True,
        text=True,
    )


def pretend_java(path: Path, script: str) -> None:
    java = path / "java"
    java.write_text(f"#!/bin/bash\n{script}\n")
    java.chmod(0o755)


def assert_lists_java_and_changed_nothing(result: subprocess.CompletedProcess[str], checkout: Path) -> None:
    assert result.returncode == 3
    assert result.stdout == ""
    assert "Debian, Ubuntu:  apt-get install --no-install-recommends default-jre-headless" in result.stderr
    assert "Fedora:          dnf install java-21-openjdk-headless" in result.stderr
    assert {entry.name for entry in checkout.iterdir()} == {"scripts", "pyproject.toml", "constraints.txt"}


def test_without_apt_get_it_lists_what_to_install(checkout: Path, path: Path) -> None:
    (path / "apt-get").unlink(missing_ok=True)
    result = setup(checkout, path)
    assert result.stderr.startswith("setup: packages are missing and there is no apt-get here\n")
    assert_lists_java_and_changed_nothing(result, checkout)


@pytest.mark.root
def test_without_root_it_lists_what_to_install(checkout: Path, path: Path) -> None:
    shutil.chown(checkout, NOBODY)
    result = setup(checkout, path, user=NOBODY)
    assert result.stderr.startswith("setup: packages are missing and only root may install them\n")
    assert_lists_java_and_changed_nothing(result, checkout)


@pytest.mark.root
def test_in_a_folder_of_somebody_else_it_says_so(checkout: Path, path: Path) -> None:
    result = setup(checkout, path, user=NOBODY)
    assert (result.returncode, result.stdout) == (3, "")
    assert f"cannot write to {checkout} as nobody" in result.stderr


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_a_java_that_is_too_old_counts_as_missing(checkout: Path, path: Path, version: str) -> None:
    (path / "apt-get").unlink(missing_ok=True)
    pretend_java(path, f"""echo 'openjdk version "{version}" 2024-01-16' >&2""")
    assert_lists_java_and_changed_nothing(setup(checkout, path), checkout)


def test_a_second_run_has_nothing_to_do_and_takes_less_than_ten_seconds() -> None:
    before = processor_seconds()
    again = subprocess.run(["make", "-s", "setup-tests"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (again.returncode, again.stdout) == (0, "setup: ready\n"), again.stderr
    assert processor_seconds() - before < 10


def processor_seconds() -> float:
    """Return the CPU time of all ended processes: unlike wall time, it does not depend on other load."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_jars_that_cannot_be_fetched_leave_no_folder_behind(checkout: Path, path: Path) -> None:
    ivy = checkout / ".venv/lib/python3.11/site-packages/pyspark/jars/ivy-2.5.3.jar"
    ivy.parent.mkdir(parents=True)
    ivy.touch()
    pretend_java(path, "echo 'unresolved dependency'; exit 1")
    folder = checkout / "build/jars/kafka"
    result = subprocess.run(
        ["bash", checkout / "scripts/jars.sh", "kafka", folder],
        env={"PATH": os.fspath(path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 3
    assert result.stderr == ("jars: could not fetch kafka; the end of build/jars-kafka.log:\nunresolved dependency\n")
    assert list(folder.parent.iterdir()) == []
