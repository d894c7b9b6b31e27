"""An agent that starts again takes its compiled programs from the cache, and sees as much as before without BCC."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.lab.conversation import conversation, exchange
from tests.lab.processes import free_port
from tests.lab.product import Watched

pytestmark = pytest.mark.root

SEEN = {"client": 3, "server": 3}


@pytest.fixture
def no_bcc(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process that cannot import BCC, although it seems to be installed."""
    package = tmp_path / "path" / "bcc"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('BCC is imported')\n")
    for name in ("libbcc.py", "version.py"):
        (package / name).touch()
    return {"PYTHONPATH": f"{package.parent}:agent"}


def counted(watched: Watched, port: int) -> dict[str, int]:
    """Return the number of requests that an agent counts at each end of a connection."""
    with watched.agent:
        assert "libbcc" not in Path(f"/proc/{watched.agent.pid}/maps").read_text()
        with conversation(port) as talk:
            exchange(talk, [1, 2, 3])
        watched.wait_for(2, "both ends to close", kind="close")
    requests: Counter[str] = Counter()
    for flow in watched.events(kind="flow"):
        requests[flow["side"]] += flow["requests"]
    return requests


def test_a_damaged_cache_is_logged_and_rebuilt_and_the_next_start_needs_no_bcc(
    tmp_path: Path, no_bcc: dict[str, str]
) -> None:
    port, cache = free_port(), tmp_path / "cache"
    flags = ("--cache-dir", str(cache))
    with Watched(tmp_path, port, *flags).agent:
        pass
    for file in cache.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    damaged = Watched(tmp_path, port, *flags)
    assert counted(damaged, port) == SEEN
    assert re.search(rf"The cache {cache} has a file [0-9a-f]{{64}} that is damaged\.", damaged.agent.log.read_text())
    assert counted(Watched(tmp_path, port, *flags, environment=no_bcc), port) == SEEN


def compile_into(cache: Path, port: int, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    flags = ("--sink", "stdout", "--ports", str(port), "--cache-dir", cache)
    command = (sys.executable, "-m", "kafka_probe", "compile", *flags)
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("damaged", [None, 0, 1], ids=["neither", "smaller", "larger"])
def test_after_compile_with_its_settings_an_agent_needs_no_bcc(
    tmp_path: Path, no_bcc: dict[str, str], damaged: int | None
) -> None:
    port, cache = free_port(), tmp_path / "cache"
    assert f"has the programs for ports {port}." in compile_into(cache, port, {}).stderr
    if damaged is not None:
        os.truncate(sorted(cache.iterdir(), key=lambda file: file.stat().st_size)[damaged], 1)
        assert "that is damaged" in compile_into(cache, port, {}).stderr
    again = compile_into(cache, port, no_bcc)
    assert (again.returncode, "damaged" in again.stderr) == (0, False)
    watched = Watched(tmp_path, port, "--cache-dir", str(cache), environment=no_bcc)
    assert counted(watched, port) == SEEN
    assert "The cache" not in watched.agent.log.read_text()


def test_compile_fails_if_the_programs_cannot_be_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", cache], check=True)
    try:
        failed = compile_into(cache, free_port(), {})
    finally:
        subprocess.run(["umount", cache], check=True)
    assert failed.returncode == 3
    assert f"The cache {cache} cannot be written: No space left on device." in failed.stderr


def test_compile_refuses_a_cache_that_an_agent_would_not_use(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, 12345, 12345)
    refused = compile_into(cache, 9092, {})
    assert refused.returncode == 3
    assert f"The cache {cache} is not used: user 12345 owns it" in refused.stderr
    assert not [*cache.iterdir()]


def test_a_cache_of_another_user_is_not_used(tmp_path: Path) -> None:
    port, cache = free_port(), tmp_path / "cache"
    cache.mkdir(mode=0o755)
    os.chown(cache, 12345, 12345)
    watched = Watched(tmp_path, port, "--cache-dir", str(cache))
    assert counted(watched, port) == SEEN
    assert f"The cache {cache} is not used: user 12345 owns it" in watched.agent.log.read_text()
    assert not [*cache.iterdir()]
