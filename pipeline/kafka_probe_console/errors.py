"""Defines the errors that end a command of the console."""

from __future__ import annotations

from kafka_probe.errors import KafkaProbeError


class TableError(KafkaProbeError):
    """A table is missing, unreadable, or of another release."""

    exit_code = 3


class NothingFoundError(KafkaProbeError):
    """Nothing matches the question; the text names what the tables have."""

    exit_code = 1
