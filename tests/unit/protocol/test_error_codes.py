"""Error codes equal the enumeration that another codec generated from Kafka."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from kafka_probe.protocol.error_codes import ERROR_NAMES


def test_codes_and_names_are_kafkas() -> None:
    assert {error.value: error.name.upper() for error in ErrorCode} == ERROR_NAMES
