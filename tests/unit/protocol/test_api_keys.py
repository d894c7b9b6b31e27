"""The kernel's API keys are those of Kafka's definitions."""

from __future__ import annotations

import re

from kafka_probe.capture.compiler import sources
from kafka_probe.protocol.api_keys import ApiKey


def test_api_keys_agree_with_the_kernels() -> None:
    named = re.findall(r"\b(API_\w+) = (\d+)", (sources() / "cursor.h").read_text())
    assert {name: int(key) for name, key in named} == {
        "API_PRODUCE": ApiKey.PRODUCE,
        "API_CONTROLLED_SHUTDOWN": ApiKey.CONTROLLED_SHUTDOWN,
        "API_SASL_HANDSHAKE": ApiKey.SASL_HANDSHAKE,
        "API_VERSIONS": ApiKey.API_VERSIONS,
    }
