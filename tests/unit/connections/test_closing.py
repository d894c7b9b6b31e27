"""How a connection ended: what the state after ESTABLISHED and the socket's error say of it."""

from __future__ import annotations

import errno

import pytest

from kafka_probe.capture.record import NO_API
from kafka_probe.connections.closing import read_close
from tests.unit.connections.records import (
    ESTABLISHED_TO_CLOSE,
    ESTABLISHED_TO_CLOSE_WAIT,
    ESTABLISHED_TO_FIN_WAIT1,
    closed,
)

NEVER_LEFT_ESTABLISHED = 0


@pytest.mark.parametrize(
    ("first_state", "error", "closed_by", "how"),
    [
        (ESTABLISHED_TO_FIN_WAIT1, 0, "local", "fin"),
        (ESTABLISHED_TO_CLOSE_WAIT, 0, "peer", "fin"),
        (ESTABLISHED_TO_CLOSE, errno.ECONNRESET, "peer", "rst_received"),
        (ESTABLISHED_TO_CLOSE, 0, "local", "rst_sent"),
        (ESTABLISHED_TO_CLOSE, errno.ETIMEDOUT, "local", "timeout"),
        # An orderly start, then a reset instead of the other end's FIN. After that FIN a reset reads as a broken pipe.
        (ESTABLISHED_TO_FIN_WAIT1, errno.ECONNRESET, "local", "rst_received"),
        (ESTABLISHED_TO_CLOSE_WAIT, errno.EPIPE, "peer", "rst_received"),
        (ESTABLISHED_TO_FIN_WAIT1, errno.ETIMEDOUT, "local", "timeout"),
        (NEVER_LEFT_ESTABLISHED, 0, "unknown", "unknown"),
    ],
)
def test_how_a_connection_closed(first_state: int, error: int, closed_by: str, how: str) -> None:
    facts = read_close(closed(first_state=first_state, error=error)[0])
    assert (facts["closed_by"], facts["how"]) == (closed_by, how)


def test_the_totals_are_those_of_the_kernel() -> None:
    totals = {
        "sent_bytes": 2**40,
        "received_bytes": 3,
        "unacked_bytes": 4,
        "retransmits": 5,
        "srtt_us": 6,
        "in_flight": 7,
    }
    facts = read_close(closed(idle_ns=540_000_000_999, **totals)[0])
    assert {name: facts[name] for name in totals} == totals
    assert facts["idle_us"] == 540_000_000


@pytest.mark.parametrize(("api_key", "name"), [(0, "Produce"), (68, "ConsumerGroupHeartbeat"), (NO_API, None)])
def test_the_last_request_is_named_by_its_api(api_key: int, name: str | None) -> None:
    assert read_close(closed(last_api_key=api_key)[0])["last_api"] == name
