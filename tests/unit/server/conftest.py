"""Fixtures of the tests of the server."""

from __future__ import annotations

import pytest

from tests.builders.certificates import Authority, an_authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return an_authority(tmp_path_factory.mktemp("authority"))
