"""Perf buffers of the kernel: order over all CPUs, wrap-around, and samples that are lost when one is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from kafka_probe.capture.perfbuf import PerfBuffers
from kafka_probe.capture.sample import PERF_SAMPLE
from tests.lab.bpf_programs import Compile

pytestmark = pytest.mark.root

BYTES_PER_CPU = 1 << 16
SAMPLES = BYTES_PER_CPU // PERF_SAMPLE.itemsize
# A number for every getpriority() of this process.
NUMBERS = """
BPF_PERF_OUTPUT(events);
BPF_ARRAY(next, u64, 1);
BPF_ARRAY(full, u64, 1);
BPF_ARRAY(scratch, struct sample, 1);
RAW_TRACEPOINT_PROBE(sys_enter)
{
	u32 zero = 0;
	u64 *number = next.lookup(&zero), *lost = full.lookup(&zero);
	struct sample *sample = scratch.lookup(&zero);
	if (ctx->args[1] != 140 || bpf_get_current_pid_tgid() >> 32 != %d || !number || !lost || !sample)
		return 0;
	sample->ts_ns = (*number)++;
	if (events.perf_submit(ctx, sample, sizeof(*sample)))
		(*lost)++;
	return 0;
}
"""


@dataclass(slots=True)
class Numbers:
    """Perf buffers that numbers are written to."""

    bpf: Any
    buffers: PerfBuffers

    def write(self, count: int) -> None:
        for _ in range(count):
            os.getpriority(os.PRIO_PROCESS, 0)

    def take(self, most: int = 1 << 20) -> list[int]:
        taken: list[int] = self.buffers.take(most)["ts_ns"].tolist()
        return taken


@pytest.fixture
def numbers(compile_bpf: Compile) -> Iterator[Numbers]:
    with closing(PerfBuffers(BYTES_PER_CPU)) as buffers:
        programs = compile_bpf(NUMBERS % os.getpid())
        events = programs[b"events"]
        for cpu, fd in buffers.descriptors.items():
            events[events.Key(cpu)] = events.Leaf(fd)
        yield Numbers(programs, buffers)


@pytest.fixture
def all_cpus() -> Iterator[list[int]]:
    """Yield the CPUs that this process may use; let it use all of them again at the end."""
    cpus = os.sched_getaffinity(0)
    yield sorted(cpus)
    os.sched_setaffinity(0, cpus)


def test_samples_come_in_the_order_of_their_writing_whatever_their_cpu(numbers: Numbers, all_cpus: list[int]) -> None:
    for n in range(40):
        os.sched_setaffinity(0, {all_cpus[n % len(all_cpus)]})
        numbers.write(3)
    assert numbers.take() == list(range(120))


def test_a_sample_that_wraps_around_is_whole(numbers: Numbers) -> None:
    for first in range(0, 10 * SAMPLES, 100):
        numbers.write(100)
        assert numbers.take() == list(range(first, first + 100))


def test_no_more_than_asked_for_is_taken_and_the_rest_comes_next(numbers: Numbers) -> None:
    numbers.write(30)
    assert numbers.take(20) == list(range(20))
    numbers.write(5)
    assert numbers.take() == list(range(20, 35))
    assert numbers.take() == []


def test_samples_that_were_not_taken_yet_are_kept(numbers: Numbers, all_cpus: list[int]) -> None:
    os.sched_setaffinity(0, {all_cpus[0]})
    numbers.write(SAMPLES)
    for _ in range(3):
        numbers.take(1)
        numbers.write(SAMPLES)
    assert numbers.bpf[b"full"][0].value > SAMPLES
    assert len(numbers.buffers._held) < SAMPLES


def test_what_finds_the_buffer_full_is_lost_and_known_to_the_writer(numbers: Numbers, all_cpus: list[int]) -> None:
    os.sched_setaffinity(0, {all_cpus[0]})
    numbers.write(2 * SAMPLES)
    taken = numbers.take()
    lost = int(numbers.bpf[b"full"][0].value)
    assert taken == list(range(len(taken)))
    assert len(taken) + lost == 2 * SAMPLES
    numbers.write(10)
    assert numbers.take() == list(range(2 * SAMPLES, 2 * SAMPLES + 10))
