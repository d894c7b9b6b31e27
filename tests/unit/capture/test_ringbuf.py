"""The reader of the kernel's ring buffer: order, wrap-around, and discarded, busy and oversized samples."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kafka_probe.capture.ringbuf import RingBuffer
from kafka_probe.capture.sample import SLOT
from tests.lab.bpf_programs import Compile

pytestmark = pytest.mark.root

PAGES = 4
SLOTS = PAGES * 4096 // SLOT.itemsize
DISCARDED = 7  # of every 10 numbers one is thrown away by its writer
# A number for every getpriority() of this process.
NUMBERS = """
BPF_RINGBUF_OUTPUT(events, %d);
BPF_ARRAY(next, u64, 1);
BPF_ARRAY(full, u64, 1);
RAW_TRACEPOINT_PROBE(sys_enter)
{
	u32 zero = 0;
	u64 *number = next.lookup(&zero), *lost = full.lookup(&zero);
	if (ctx->args[1] != 140 || bpf_get_current_pid_tgid() >> 32 != %d || !number || !lost)
		return 0;
	u64 n = (*number)++;
	struct sample *sample = events.ringbuf_reserve(sizeof(*sample));
	if (!sample) {
		(*lost)++;
		return 0;
	}
	sample->ts_ns = n;
	if (n %% 10 == %d)
		events.ringbuf_discard(sample, 0);
	else
		events.ringbuf_submit(sample, 0);
	return 0;
}
"""


@dataclass(slots=True)
class Numbers:
    """A ring that numbers are written to."""

    bpf: Any
    ring: RingBuffer

    def write(self, count: int) -> None:
        for _ in range(count):
            os.getpriority(os.PRIO_PROCESS, 0)

    def take(self, most: int = 1 << 20) -> list[int]:
        taken: list[int] = self.ring.take(most)["ts_ns"].tolist()
        return taken

    @property
    def lost(self) -> int:
        return int(self.bpf[b"full"][0].value)


def kept(numbers: range) -> list[int]:
    return [number for number in numbers if number % 10 != DISCARDED]


@pytest.fixture
def numbers(compile_bpf: Compile) -> Iterator[Numbers]:
    bpf = compile_bpf(NUMBERS % (PAGES, os.getpid(), DISCARDED))
    ring = RingBuffer(bpf[b"events"].map_fd, PAGES * 4096)
    yield Numbers(bpf, ring)
    ring.close()


def test_samples_come_in_their_order_and_once(numbers: Numbers) -> None:
    assert numbers.take() == []
    numbers.write(20)
    assert numbers.take() == kept(range(20))
    assert numbers.take() == []


def test_no_more_are_taken_than_wanted(numbers: Numbers) -> None:
    numbers.write(25)
    assert numbers.take(5) == kept(range(5))
    assert numbers.take(10) == kept(range(5, 15))
    assert numbers.take(100) == kept(range(15, 25))


def test_the_ring_goes_round_many_times(numbers: Numbers) -> None:
    taken = []
    for _ in range(30):
        numbers.write(SLOTS // 2 + 3)
        taken += numbers.take()
    assert taken == kept(range(30 * (SLOTS // 2 + 3)))
    assert numbers.lost == 0


def test_a_full_ring_refuses_what_comes_and_recovers(numbers: Numbers) -> None:
    numbers.write(SLOTS + 10)
    taken = numbers.take()
    held = SLOTS + 10 - numbers.lost
    assert held >= SLOTS - 1
    assert taken == kept(range(held))
    numbers.write(20)
    assert numbers.take() == kept(range(SLOTS + 10, SLOTS + 30))


def test_samples_taken_stay_when_their_slots_are_used_again(numbers: Numbers) -> None:
    numbers.write(20)
    first = numbers.ring.take(20)
    numbers.write(2 * SLOTS)
    assert first["ts_ns"].tolist() == kept(range(20))


def test_what_is_behind_a_busy_sample_waits(numbers: Numbers) -> None:
    numbers.write(6)
    real = numbers.ring._slots
    numbers.ring._slots = np.array(real)  # a copy in which a sample can be busy: the kernel does not leave one so
    numbers.ring._slots["length"][3] |= 1 << 31
    assert numbers.take() == [0, 1, 2]
    assert numbers.take() == []
    numbers.ring._slots = real
    assert numbers.take() == [3, 4, 5]


def test_waiting_ends_with_a_sample_or_with_the_time(numbers: Numbers) -> None:
    before = time.monotonic()
    numbers.ring.wait(0.05)
    assert time.monotonic() - before >= 0.05
    numbers.write(1)
    numbers.ring.wait(30)
    assert time.monotonic() - before < 10
    assert numbers.take() == [0]
