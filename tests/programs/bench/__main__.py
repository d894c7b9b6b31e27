"""Runs `make bench`: the cost of the agent beside tcpdump and tshark on the same load, interleaved in one run.

Every round runs the load without an observer twice and with the agent once, in changing order, and each ratio is of two
runs of the same round; without against without is the noise. The first rounds have the other observers as well. ROUNDS
sets the number of rounds, SECONDS the length of a run. Writes build/bench.json: per figure min, median and max over the
rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, permutations
from pathlib import Path
from statistics import median

from kafka_probe.capture.backends import refusal, type_ids
from kafka_probe.capture.btf import Btf
from kafka_probe.capture.programs import ORDER
from tests.lab.broker import Broker
from tests.lab.product import losses_by_agent, read_events
from tests.lab.topics import create_topics
from tests.programs.bench import scale
from tests.programs.bench.load import TOPIC, Load, run_connections, run_load
from tests.programs.bench.observers import Observer, agent, bpf_stats, tcpdump, tshark
from tests.programs.bench.starts import measure_starts

ROOT = Path(__file__).parents[3]
DIRECTORY = ROOT / "build" / "bench"
RESULT = ROOT / "build" / "bench.json"
ROUNDS = int(os.environ.get("ROUNDS", "12"))
SECONDS = float(os.environ.get("SECONDS", "20"))  # two intervals of the agent's: a report belongs to the cost
OTHERS_ROUNDS = 3
CONNECTIONS = 2_000
WARM_UP_RECORDS = 20_000
UNUSED_PORT = 1
ALL_FRAMES = ("--archive", "all", "--archive-bytes-per-s", "1GiB")
FIRST_RECORDS = 1_000  # an observer's first look at the load belongs to its start-up

Start = Callable[[], AbstractContextManager[Observer | None]]


@dataclass(frozen=True, slots=True)
class Run:
    """One load under one observer; CPU in µs per request, memory in MiB, kernel time in ns per call."""

    load: Load
    cpu_us_per_request: float = 0.0
    rss_mb: float = 0.0
    kernel_ns_per_call: float = 0.0
    kernel_ns_per_request: float = 0.0


def main() -> int:
    """Run all rounds; return the exit status: 1 if the agent lost anything of the honest load."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    with (
        Broker(DIRECTORY / "watched", lasting=True) as broker,
        Broker(DIRECTORY / "sink", heap_mb=256, lasting=True) as sink,
    ):
        create_topics(broker.bootstrap, [TOPIC], partitions=1)
        records = calibrate(broker)
        observers: dict[str, Start] = {
            "none": nullcontext,
            "none again": nullcontext,
            "agent": lambda: agent(DIRECTORY, broker.port, sink, "server"),
            "agent, both ends": lambda: agent(DIRECTORY, broker.port, sink, "both"),
            "agent, all frames": lambda: agent(DIRECTORY, broker.port, sink, "server", more=ALL_FRAMES),
            "tcpdump": lambda: tcpdump(DIRECTORY, broker),
            "tshark": lambda: tshark(DIRECTORY, broker),
        }
        rounds = []
        for number, order in enumerate(orders(), 1):
            rounds.append({name: measure(broker, records, observers[name]) for name in order})
            print(f"round {number}/{ROUNDS}: {line(rounds[-1])}", flush=True)
        kernel = measure_kernel(broker, sink, records) | measure_lifecycle(broker, sink)
        rates = [scale.with_rate(rate, SECONDS, broker, sink, DIRECTORY) for rate in scale.RATES]
        lost = [
            sum(count for reason, count in losses.items() if not reason.startswith("archive_"))
            for losses in losses_by_agent(read_events(sink.bootstrap)).values()
        ]
    starts = measure_starts()
    connections = [scale.with_connections(count, DIRECTORY) for count in scale.CONNECTIONS]
    figures = figures_of(rounds, kernel | starts, lost)
    plotted = {"date": time.strftime("%Y-%m-%d"), "by_connections": connections, "by_rate": rates}
    RESULT.write_text(json.dumps({**figures, "scale": plotted}, indent=2) + "\n")
    show(figures)
    show_scale(connections, rates)
    return int(any(lost))


def calibrate(broker: Broker) -> int:
    """Warm the broker up; return the number of records in a run of SECONDS."""
    run_load(broker, WARM_UP_RECORDS)
    return int(run_load(broker, WARM_UP_RECORDS).records_per_s * SECONDS)


def orders() -> Iterable[tuple[str, ...]]:
    """Yield the runs of each round: those to compare, in changing order, and at first the others after them."""
    compared = islice(cycle(permutations(("none", "agent", "none again"))), ROUNDS)
    others = ("agent, both ends", "agent, all frames", "tcpdump", "tshark")
    return ((*order, *others) if number < OTHERS_ROUNDS else order for number, order in enumerate(compared))


def measure(broker: Broker, records: int, start: Start) -> Run:
    """Run one load under one warm observer, from the quiet before the load to the quiet after it."""
    with start() as observer:
        if observer is None:
            return Run(run_load(broker, records))
        run_load(broker, FIRST_RECORDS)
        observer.wait_until_quiet()
        before = observer.cpu_us
        time_before, calls_before = observer.kernel_time_and_calls
        load = run_load(broker, records)
        observer.wait_until_quiet()
        time_after, calls_after = observer.kernel_time_and_calls
        kernel_ns, calls = time_after - time_before, calls_after - calls_before
        return Run(
            load,
            (observer.cpu_us - before) / load.requests,
            observer.peak_rss_mb,
            kernel_ns / calls if calls else 0.0,
            kernel_ns / load.requests,
        )


def measure_kernel(broker: Broker, sink: Broker, records: int) -> dict[str, list[float]]:
    """Measure the hooks of each backend that this kernel supports, on Kafka's sockets and on others."""
    ids = type_ids(Btf())
    figures: dict[str, list[float]] = defaultdict(list)
    with bpf_stats():
        for backend in (name for name in ORDER if not refusal(name, ids)):
            for _ in range(OTHERS_ROUNDS):
                run, other = (
                    measure(broker, records, partial(agent, DIRECTORY, port, sink, "server", backend))
                    for port in (broker.port, UNUSED_PORT)
                )
                figures[f"kernel_ns_per_call_{backend}"].append(run.kernel_ns_per_call)
                figures[f"kernel_ns_per_request_{backend}"].append(run.kernel_ns_per_request)
                figures[f"kernel_ns_per_other_call_{backend}"].append(other.kernel_ns_per_call)
    first = next(iter(figures))  # of the backend that an agent takes by itself
    return {"kernel_ns_per_call": figures[first], **figures}


def measure_lifecycle(broker: Broker, sink: Broker) -> dict[str, list[float]]:
    """Measure the cost of a connection from open to close, with one request and the owner's name."""
    figures: dict[str, list[float]] = defaultdict(list)
    with bpf_stats():
        for _ in range(OTHERS_ROUNDS):
            with agent(DIRECTORY, broker.port, sink, "server") as observer:
                run_connections(broker, FIRST_RECORDS)
                observer.wait_until_quiet()
                cpu_before, (ns_before, _) = observer.cpu_us, observer.kernel_time_and_calls
                run_connections(broker, CONNECTIONS)
                observer.wait_until_quiet()
                figures["agent_cpu_us_per_connection"].append((observer.cpu_us - cpu_before) / CONNECTIONS)
                ns = observer.kernel_time_and_calls[0] - ns_before
                figures["kernel_ns_per_connection"].append(ns / CONNECTIONS)
    return figures


def figures_of(
    rounds: list[dict[str, Run]], others: dict[str, list[float]], lost: list[int]
) -> dict[str, dict[str, float]]:
    """Return min, median and max of each figure over the rounds."""

    def throughput_ratio(name: str) -> list[float]:
        return [runs[name].load.records_per_s / runs["none"].load.records_per_s for runs in rounds]

    def p99_ratio(name: str) -> list[float]:
        return [runs[name].load.p99_ms / runs["none"].load.p99_ms for runs in rounds]

    def cpu(name: str) -> list[float]:
        return [runs[name].cpu_us_per_request for runs in rounds if name in runs]

    figures: dict[str, list[float]] = {
        "throughput_ratio": throughput_ratio("agent"),
        "throughput_ratio_noise": throughput_ratio("none again"),
        "p99_ratio": p99_ratio("agent"),
        "p99_ratio_noise": p99_ratio("none again"),
        "agent_cpu_us_per_request": cpu("agent"),
        "agent_both_ends_cpu_us_per_request": cpu("agent, both ends"),
        "agent_all_frames_cpu_us_per_request": cpu("agent, all frames"),
        "tcpdump_cpu_us_per_request": cpu("tcpdump"),
        "tshark_cpu_us_per_request": cpu("tshark"),
        "agent_rss_mb": [runs["agent"].rss_mb for runs in rounds],
        "tshark_rss_mb": [runs["tshark"].rss_mb for runs in rounds if "tshark" in runs],
        "losses": [float(count) for count in lost],
        **others,
        "requests_per_s": [runs["none"].load.records_per_s for runs in rounds],
    }
    return {
        name: {"min": min(values), "median": median(values), "max": max(values)} for name, values in figures.items()
    }


def line(runs: dict[str, Run]) -> str:
    """Return a round as one line."""
    return ", ".join(
        f"{name} {run.load.records_per_s:,.0f}/s"
        + (f" {run.cpu_us_per_request:.2f} µs" if run.cpu_us_per_request else "")
        for name, run in runs.items()
    )


def show(figures: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    print(f"\n{'':36}{'min':>12}{'median':>12}{'max':>12}")
    for name, spread in figures.items():
        print(f"{name:36}" + "".join(f"{spread[column]:12,.3f}" for column in ("min", "median", "max")))
    print(f"\n{ROUNDS} rounds. The same as JSON: {RESULT.relative_to(ROOT)}")


def show_scale(*tables: list[scale.Figures]) -> None:
    """Print the plotted figures."""
    for lines in tables:
        print()
        for cells in (lines[0], *(line.values() for line in lines)):
            print("".join(f"{cell:>18}" if isinstance(cell, str) else f"{cell:18,.2f}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
