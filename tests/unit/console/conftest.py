"""Gives tests of `inspect` one archive."""

from __future__ import annotations

import pytest

from tests.unit.console.archived import Archive, write_archive


@pytest.fixture(scope="package")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Return the archive of three connections, of which one was reset and one has a hostile client id."""
    return write_archive(tmp_path_factory.mktemp("archive"))
