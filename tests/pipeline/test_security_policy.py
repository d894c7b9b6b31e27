"""The numbers of SECURITY.md about the pipeline are those of the constants that enforce them."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import StringType

from kafka_probe import events as schema
from kafka_probe import text
from kafka_probe.conversations import packets
from kafka_probe_console import answer_command, archived_ends, archived_frames, tables
from kafka_probe_pipeline import (
    agents,
    alertmanager,
    alerts,
    incidents,
    messages,
    scopes,
    seen_events,
    source,
    storms,
    sums,
    traffic,
)
from kafka_probe_pipeline.config import PipelineConfig
from tests.builders.policy import policy_texts, unexplained

_, POLICY = policy_texts()
SPANS = {3600: "an hour"}


def power_of_two(number: int) -> str:
    exponent = number.bit_length() - 1
    assert number == 1 << exponent
    return f"2^{exponent}"


KEYS = len(
    [key for key in (*range(-9999, 9999), *schema.CODECS) if re.search(source.KEYS.replace(r"\z", r"\Z"), str(key))]
)
NAMES = [name for name in traffic.DIMENSIONS if isinstance(traffic.SCHEMA[name].dataType, StringType)]
MOST_OF_EVENT_BYTES = source.MOST_TOPICS * len(NAMES) * source.TEXT_CHARACTERS
PINNED = (
    f"a text or labels of more than {source.TEXT_CHARACTERS:,} characters",
    f"an address of more than {source.ADDRESS_CHARACTERS}",
    f"a count below 0 or beyond {power_of_two(source.MOST)}",
    f"a `seq` above {power_of_two(source.MOST_SEQ)}",
    f"its line cut after {messages.DEAD_LETTER_CHARACTERS:,} characters",
    f"names more than {source.MOST_TOPICS:,} topics, or {source.MOST_OPEN} counts of open connections",
    f"A record of more than {source.MOST_RECORD_BYTES >> 20} MiB",
    f"more than {SPANS[agents._AHEAD_US // 1_000_000]} ahead",
    f"the {seen_events.RANGES_KEPT} widest",
    f"at most {agents.MOST_AGENTS:,} agents",
    f"the newest {agents.RESETS_KEPT:,} resets",
    f"{source.MOST_TOPICS:,} topics and long names becomes {MOST_OF_EVENT_BYTES / 1e6:.0f} MB of rows",
    f"not complete within {PipelineConfig().closed_limit:g} s (`--closed-limit`)",
    f"At most {storms.MOST_OF_KIND} storms of a kind are active",
    f"at most {incidents.MOST_CANDIDATES:,} possible storms, and of each the {incidents.MOST_CELLS:,} largest groups",
    f"at most {archived_ends.MOST_ENDS:,} ends of connections",
    f"at most {archived_frames.MOST_OF_SIDE} ends of one side of a connection",
    f"end after {answer_command._TIME_LIMIT_S} s",
    f"at most {tables.SETTINGS['memory_limit'].removesuffix('MB')} MB of memory of DuckDB",
    f"a size above {packets.MOST_SEGMENTED_BYTES >> 20} MiB it has one packet",
    f"names are cut after {scopes.NAME_CHARACTERS} characters",
    f"names of at most {text.NAME_LIMIT} characters, and evidence of at most {alerts.EVIDENCE_LIMIT:,}",
    f"counts have at most {KEYS:,} keys",
    f"exceed {(sums.OVERFLOWED + 1).bit_length() - 1} bits",
    f"tables have {power_of_two(sums.OVERFLOWED + 1)}-1",
    f"ends after {alertmanager.REQUEST_WITHIN_S:g} s in all",
    f"waits at most {alertmanager.STOP_WITHIN_S:g} s for each Alertmanager",
    f"cut after {alertmanager.LOGGED_BYTES} bytes",
)
# Numbers that no constant has: a measured one, and one of the brokers.
MEASURED = ("A row of traffic is below 1 MiB", "1 MiB on the wire may become gigabytes", "to 5 MiB then")


@pytest.mark.parametrize("sentence", PINNED)
def test_the_policy_has_the_number_that_the_code_enforces(sentence: str) -> None:
    assert sentence in POLICY


def test_no_other_number_is_in_the_policy() -> None:
    assert unexplained(POLICY, (*PINNED, *MEASURED)) == []
