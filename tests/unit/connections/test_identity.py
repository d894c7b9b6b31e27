"""The identity of a connection, from its opening sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.capture.sample import COMMAND_LINE_BYTES
from kafka_probe.connections.identity import Identity, flow_id, read_open
from kafka_probe.workloads import Owner
from tests.builders.samples import Samples, opened

SEQUENCE_NUMBERS = st.integers(0, 2**32 - 1)


def identity_of(samples: Samples) -> Identity:
    return read_open(samples[0])[0]


def owner_of(samples: Samples) -> Owner:
    return read_open(samples[0])[1]


@given(SEQUENCE_NUMBERS, SEQUENCE_NUMBERS)
def test_both_ends_have_one_flow_id(client_isn: int, broker_isn: int) -> None:
    client_first, broker_first = ((isn + 1) % 2**32 for isn in (client_isn, broker_isn))
    # The end that connected counts its SYN among the bytes acknowledged, so its tx_base is the SYN's number itself.
    client_side = flow_id(server_side=False, tx_base=client_isn, rx_base=broker_first)
    server_side = flow_id(server_side=True, tx_base=broker_first, rx_base=client_first)
    assert client_side == server_side
    assert client_side == f"{client_first:08x}{broker_first:08x}"


def test_a_flow_id_wraps_with_the_sequence_numbers() -> None:
    assert flow_id(server_side=False, tx_base=2**32 - 1, rx_base=1) == "0000000000000001"


def test_the_record_of_either_end_gives_the_flow_id() -> None:
    client_side = identity_of(opened(server_side=False, tx_base=2**32 - 1, rx_base=0xABCD))
    server_side = identity_of(opened(server_side=True, tx_base=0xABCD, rx_base=0))
    assert client_side.flow_id == server_side.flow_id == "000000000000abcd"


@pytest.mark.parametrize(
    ("address", "printed"),
    [
        ("10.0.0.7", "10.0.0.7:40001"),
        ("::ffff:10.0.0.7", "10.0.0.7:40001"),
        ("::1", "[::1]:40001"),
        ("fd00::a:7", "[fd00::a:7]:40001"),
    ],
)
def test_an_end_is_printed_with_its_port(address: str, printed: str) -> None:
    mapped = "::ffff:10.0.0.1" if ":" in address else "10.0.0.1"
    identity = identity_of(opened(local=(address, 40001), peer=(mapped, 9092)))
    assert (identity.local, identity.peer) == (printed, "10.0.0.1:9092")


def test_the_owner_is_the_process_as_the_kernel_saw_it() -> None:
    words = b"java\0-jar\0app.jar\0"
    area = np.frombuffer(words.ljust(COMMAND_LINE_BYTES, b"~"), np.uint8)
    samples = opened(
        start_ns=5,
        cgroup_id=6,
        cgroup_v1_id=10,
        tgid=7,
        uid=8,
        netns=9,
        comm=b"java",
        command_line=area,
        command_line_size=len(words),
    )
    assert owner_of(samples) == Owner(7, 5, b"java", 8, 9, 6, 10, words)
    assert identity_of(samples).netns == 9


def test_a_connection_that_was_open_before_is_known_as_such() -> None:
    assert identity_of(opened(from_start=True)).from_start
    assert not identity_of(opened(from_start=False)).from_start
