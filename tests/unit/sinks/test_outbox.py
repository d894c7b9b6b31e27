"""Events waiting for a sink are bounded; further ones are counted as lost, and nothing is counted twice."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_probe.sinks.batch import EVENT_BYTES, Batch, batches
from kafka_probe.sinks.outbox import LOSSES, Outbox, Worker, encode


def oldest(outbox: Outbox) -> Batch:
    batch = outbox.head()
    assert batch
    return batch


def test_an_event_is_one_line() -> None:
    assert encode({"errors": {"29": 1}, "text": "a\nb"}) == b'{"errors":{"29":1},"text":"a\\nb"}\n'


@given(st.lists(st.binary(min_size=1, max_size=30)), st.integers(min_value=1, max_value=50))
def test_batches_keep_every_line_in_order_and_exceed_the_limit_only_for_one_line(
    lines: list[bytes], limit: int
) -> None:
    found = list(batches(lines, limit))
    assert b"".join(batch.lines for batch in found) == b"".join(lines)
    assert sum(batch.events for batch in found) == len(lines)
    assert all(len(batch.lines) <= limit or batch.events == 1 for batch in found)


def test_the_newest_events_are_dropped_when_the_bound_is_reached() -> None:
    outbox = Outbox(limit_bytes=10)
    outbox.put([b"12345\n"])
    outbox.put([b"67890\n", b"abcde\n"])
    assert outbox.head() == Batch(b"12345\n", 1)
    assert outbox.lost["sink_buffer_full"] == 2
    assert outbox.waiting_bytes == 6


def test_an_event_that_is_larger_than_any_file_may_be_is_counted() -> None:
    outbox, longest = Outbox(limit_bytes=4 * EVENT_BYTES), b"x" * (EVENT_BYTES - 1) + b"\n"
    outbox.put([longest, b"x" + longest])
    assert (outbox.waiting_bytes, outbox.lost["sink_event_too_large"]) == (EVENT_BYTES, 1)
    assert outbox.lost["sink_buffer_full"] == 0


def test_a_peer_that_sends_much_leaves_space_to_others() -> None:
    outbox, line = Outbox(limit_bytes=8000), b"x" * 99 + b"\n"
    outbox.put([line] * 80, peers=["flood"] * 80)
    assert outbox.waiting_bytes == 4000 + 100 + 1000
    outbox.put([line] * 9, peers=["honest"] * 9)
    assert outbox.waiting_bytes == 6000
    assert outbox.lost["sink_buffer_full"] == 29


def test_flows_leave_space_to_ends_and_both_to_what_is_about_no_one_connection() -> None:
    outbox, line = Outbox(limit_bytes=8000), b"x" * 99 + b"\n"
    for number in range(100):
        outbox.put([line], peers=[f"peer {number}"], kinds=["flow"])
    assert outbox.waiting_bytes == 6000
    for kind in ("open", "reset", "close") * 4:
        outbox.put([line] * 20, peers=["peer 1"] * 20, kinds=[kind] * 20)
    assert outbox.waiting_bytes == 7000
    outbox.put([line] * 20)
    assert outbox.waiting_bytes == 8000
    assert outbox.lost["sink_buffer_full"] == 40 + 230 + 10


def test_a_peer_gets_a_quarter_of_what_leaves_as_its_share() -> None:
    outbox, line = Outbox(limit_bytes=8000), b"x" * 99 + b"\n"
    outbox.put([line] * 20, peers=["flood"] * 20)
    outbox.put([line] * 60, peers=["flood"] * 60)
    assert outbox.waiting_bytes == 5100
    outbox.finish(oldest(outbox))
    outbox.put([line] * 60, peers=["flood"] * 60)
    assert outbox.waiting_bytes == 4100 + 2000 // 4


def test_a_batch_counts_towards_the_bound_until_it_is_finished() -> None:
    outbox = Outbox(limit_bytes=8)
    outbox.put([b"12345\n"])
    batch = oldest(outbox)
    outbox.put([b"67890\n"])
    outbox.finish(batch)
    outbox.put([b"abcde\n"])
    assert outbox.head() == Batch(b"abcde\n", 1)
    assert outbox.events_delivered == 1
    assert outbox.bytes_delivered == 6
    assert outbox.lost["sink_buffer_full"] == 1


def test_lost_parts_of_a_batch_are_counted_by_their_reasons() -> None:
    outbox = Outbox(limit_bytes=100)
    outbox.put([b"1\n", b"22\n", b"333\n"])
    outbox.finish(oldest(outbox), [(Batch(b"1\n", 1), "sink_refused"), (Batch(b"22\n", 1), "sink_send_failed")])
    assert (outbox.lost["sink_refused"], outbox.lost["sink_send_failed"]) == (1, 1)
    assert (outbox.events_delivered, outbox.bytes_delivered) == (1, 4)
    assert outbox.waiting_bytes == 0


def test_a_closed_outbox_hands_out_what_is_left_and_counts_what_still_comes() -> None:
    outbox = Outbox(limit_bytes=100)
    outbox.put([b"1\n"])
    outbox.close()
    outbox.put([b"2\n"])
    outbox.finish(oldest(outbox))
    assert outbox.head() is None
    assert outbox.events_delivered == 1
    assert outbox.lost["sink_unsent_at_exit"] == 1


def test_a_delivery_that_ends_after_the_outbox_was_abandoned_is_not_counted_again() -> None:
    outbox = Outbox(limit_bytes=100)
    outbox.put([b"1\n"])
    batch = oldest(outbox)
    outbox.abandon()
    outbox.finish(batch)
    assert outbox.lost["sink_unsent_at_exit"] == 1
    assert outbox.events_delivered == 0
    assert outbox.waiting_bytes == 0


def test_stopping_delivers_what_waits() -> None:
    outbox = Outbox(limit_bytes=100)
    delivered: list[bytes] = []

    def deliver(batch: Batch) -> None:
        delivered.append(batch.lines)
        outbox.finish(batch)

    worker = Worker("test", outbox, deliver)
    worker.start()
    outbox.put([b"1\n"])
    outbox.put([b"2\n"])
    worker.stop(5)
    assert delivered == [b"1\n", b"2\n"]


def test_stopping_does_not_wait_longer_than_its_deadline() -> None:
    outbox = Outbox(limit_bytes=100)
    released = threading.Event()

    def deliver(_: Batch) -> None:
        released.wait(10)

    worker = Worker("test", outbox, deliver)
    worker.start()
    outbox.put([b"1\n"])
    began_s = time.monotonic()
    worker.stop(0.05)
    assert time.monotonic() - began_s < 5
    assert outbox.lost["sink_unsent_at_exit"] == 1
    released.set()
    worker.join(5)


@pytest.mark.parametrize("reason", LOSSES)
def test_every_reason_is_there_from_the_start(reason: str) -> None:
    assert Outbox(1).lost[reason] == 0
