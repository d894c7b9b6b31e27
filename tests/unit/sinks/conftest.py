"""Provides an outbox without pauses."""

from __future__ import annotations

import pytest

from kafka_probe.sinks import outbox


@pytest.fixture
def nothing_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an outbox write to disk at once, and retry at once."""
    monkeypatch.setattr(outbox, "SPOOL_AFTER_S", 0.0)
    monkeypatch.setattr(outbox, "RETRY_S", 0.01)
