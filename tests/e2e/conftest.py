"""Gives agents one port and one cache of compiled programs, so that programs are compiled once per set of options."""

from __future__ import annotations

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
