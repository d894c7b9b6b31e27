"""The reason of a close, from the state after ESTABLISHED and the socket's error."""

from __future__ import annotations

import errno

import pytest

from kafka_probe.capture.sample import NO_API
from kafka_probe.connections.close_reason import closing_ns, read_close
from tests.builders.samples import (
    ESTABLISHED_TO_CLOSE,
    ESTABLISHED_TO_CLOSE_WAIT,
    ESTABLISHED_TO_FIN_WAIT1,
    closed,
)

NEVER_LEFT_ESTABLISHED = 0
SECOND_NS = 10**9


@pytest.mark.parametrize(
    ("first_state", "error", "closed_by", "how"),
    [
        (ESTABLISHED_TO_FIN_WAIT1, 0, "local", "fin"),
        (ESTABLISHED_TO_CLOSE_WAIT, 0, "peer", "fin"),
        (ESTABLISHED_TO_CLOSE, errno.ECONNRESET, "peer", "rst_received"),
        (ESTABLISHED_TO_CLOSE, 0, "local", "rst_sent"),
        (ESTABLISHED_TO_CLOSE, errno.ETIMEDOUT, "local", "timeout"),
        # An orderly start, then a reset instead of the other end's FIN. After that FIN a reset, which reads as a broken
        # pipe, is only its answer to what was sent to it.
        (ESTABLISHED_TO_FIN_WAIT1, errno.ECONNRESET, "local", "rst_received"),
        (ESTABLISHED_TO_CLOSE_WAIT, errno.EPIPE, "peer", "fin"),
        (ESTABLISHED_TO_FIN_WAIT1, errno.ETIMEDOUT, "local", "timeout"),
        # The network reported why nothing came through.
        (ESTABLISHED_TO_CLOSE, errno.EHOSTUNREACH, "local", "timeout"),
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
    facts = read_close(closed(**totals)[0])
    assert facts | totals == facts


@pytest.mark.parametrize(("api_key", "name"), [(0, "Produce"), (68, "ConsumerGroupHeartbeat"), (NO_API, None)])
def test_the_last_request_is_named_by_its_api(api_key: int, name: str | None) -> None:
    facts = read_close(closed(last_api_key=api_key)[0])
    assert facts["last_api"] == name


IDLE = {"closing_ns": 20 * SECOND_NS, "sent_ns": 9 * SECOND_NS, "received_ns": 11 * SECOND_NS}


def times(**data: int) -> tuple[float | None, ...]:
    """Return the idle time, the silence and the time since the last payload received, in seconds."""
    facts = read_close(closed(ts_ns=21 * SECOND_NS, **data)[0])
    spans_us = facts["idle_us"], facts["silence_us"], facts["received_idle_us"]
    return tuple(None if us is None else us / 1e6 for us in spans_us)


def test_idle_is_counted_until_this_end_began_to_close() -> None:
    assert times(**IDLE) == (9, 9, 9)
    assert closing_ns(closed(ts_ns=21 * SECOND_NS, **IDLE)[0]) == 20 * SECOND_NS


def test_what_came_while_the_connection_was_closing_was_not_idle() -> None:
    assert times(**{**IDLE, "received_ns": 20 * SECOND_NS + 5}) == (0, 0, 0)


def test_a_connection_that_moved_nothing_has_no_idle_age() -> None:
    assert times(closing_ns=20 * SECOND_NS) == (None, None, None)


def test_the_end_is_when_nothing_passes_any_more_if_its_beginning_was_not_seen() -> None:
    assert times(**{**IDLE, "closing_ns": 0}) == (10, 10, 10)


@pytest.mark.parametrize("in_vain", [{"retransmits_unanswered": 3}, {"error": errno.ECONNRESET}])
def test_what_was_sent_in_vain_does_not_end_a_silence(in_vain: dict[str, int]) -> None:
    sent = {**IDLE, "sent_ns": 19 * SECOND_NS, "silence_ns": 8 * SECOND_NS, "unacked_bytes": 70}
    assert times(**sent, **in_vain) == (1, 8, 9)


def test_what_is_still_on_its_way_does() -> None:
    assert times(**{**IDLE, "sent_ns": 19 * SECOND_NS}, silence_ns=8 * SECOND_NS, unacked_bytes=70) == (1, 1, 9)


def test_a_produce_request_without_acks_and_unset_timeouts() -> None:
    facts = read_close(closed(no_response=1, keepalive=1, owner_exiting=1)[0])
    assert (facts["last_acks"], facts["user_timeout_ms"]) == (0, None)
    assert facts["keepalive"] is True
    assert facts["owner_exiting"] is True
    facts = read_close(closed(user_timeout_ms=30_000)[0])
    assert (facts["last_acks"], facts["user_timeout_ms"]) == (None, 30_000)


RECEIVED = {"first_state": ESTABLISHED_TO_FIN_WAIT1, "burst_direction": 1}
CLOSE_NOTIFY = {**IDLE, "sent_ns": 20 * SECOND_NS - 5, "burst_ns": 20 * SECOND_NS - 9, "pause_ns": 7 * SECOND_NS}


@pytest.mark.parametrize(
    ("changes", "closed_by", "how", "silence_s"),
    [
        ({}, "local", "fin", 7),
        ({"burst_direction": 1}, "peer", "fin", 7),
        ({"burst_direction": 1, "error": errno.EPIPE, "unacked_bytes": 24}, "peer", "fin", 7),
        ({"burst_response": 1}, "peer", "fin", 0),
        ({"burst_bytes": 129}, "peer", "fin", 0),
        ({"burst_ns": 18 * SECOND_NS}, "peer", "fin", 0),
        ({"first_state": ESTABLISHED_TO_FIN_WAIT1, "error": errno.ECONNRESET}, "local", "rst_received", 7),
        ({**RECEIVED, "received_ns": 20 * SECOND_NS - 9}, "peer", "fin", 7),
        ({**RECEIVED, "received_ns": 19_400_000_000, "burst_ns": 19_400_000_000}, "local", "fin", 0.6),
        ({**RECEIVED, "owner_exiting": 1}, "local", "fin", 0),
        ({"first_state": ESTABLISHED_TO_CLOSE, "error": errno.ECONNRESET}, "peer", "rst_received", 0),
        ({"first_state": ESTABLISHED_TO_CLOSE}, "local", "rst_sent", 7),
        ({"first_state": ESTABLISHED_TO_CLOSE, "burst_direction": 1}, "local", "rst_sent", 0),
        ({"first_state": ESTABLISHED_TO_CLOSE, "owner_exiting": 1}, "local", "rst_sent", 0),
    ],
    ids=[
        "we sent close_notify", "the peer did", "and was gone when we answered", "it was asked", "more was sent",
        "it was sent before",
        "we did and were reset", "the peer did and we were quicker", "the peer sent something else a while before",
        "the process ended", "a reset", "we did and closed before we read the peer's", "the peer did and more came",
        "the process was killed",
    ],
)  # fmt: skip
def test_the_end_that_sends_close_notify_closes(
    changes: dict[str, int], closed_by: str, how: str, silence_s: float
) -> None:
    end = {**CLOSE_NOTIFY, "burst_bytes": 48, "first_state": ESTABLISHED_TO_CLOSE_WAIT, **changes}
    facts = read_close(closed(**end)[0], tls=True)
    assert (facts["closed_by"], facts["how"]) == (closed_by, how)
    assert facts["silence_us"] == pytest.approx(silence_s * 1e6, abs=1)


def test_without_tls_there_is_no_close_notify() -> None:
    facts = read_close(closed(**CLOSE_NOTIFY, burst_bytes=48, first_state=ESTABLISHED_TO_CLOSE_WAIT)[0])
    assert (facts["closed_by"], facts["silence_us"]) == ("peer", 0)
