"""Gives agents one port and one cache of compiled programs, so that programs are compiled once per set of options."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from tests.lab.processes import free_port


@pytest.fixture(scope="package")
def port() -> int:
    """Return the port of tests without a broker: one for all of them, because programs are compiled for a port."""
    return free_port()


@pytest.fixture(scope="package", autouse=True)
def _programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LAB_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        yield


@pytest.fixture
def clients_end() -> Iterator[None]:
    """Wait for the threads of clients: one that lives on would log into the next test. Collect their sockets."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive(), f"{thread.name} outlives its test"
    gc.collect()
