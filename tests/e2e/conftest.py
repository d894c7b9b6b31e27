"""Gives agents one port and one cache of compiled programs, so that programs are compiled once per set of options."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.processes import free_port


@pytest.fixture(scope="package")
def port() -> int:
    """Return the watched port of tests that compare nothing with other traffic."""
    return free_port()


@pytest.fixture(scope="package", autouse=True)
def _programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KAFKA_PROBE_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        yield
