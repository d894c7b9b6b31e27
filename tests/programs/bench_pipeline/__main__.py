"""Runs `make bench-pipeline`: what the pipeline costs and how fast it is, with the generated events of a fleet.

It knows of the job only its command line, its topics, its processes and Spark's checkpoints. Writes
build/bench-pipeline.json: min, median and max of each figure; measurements that are not wanted stay there. Exit status
1: a figure is missing; `missing` lists why.

OPEN=1000,10000,100000 are the numbers of open connections. ONLY=throughput,start,idle,open names some of the
measurements; `day` is measured only if it is named, with HOURS=2 of it at the real pace. ROUNDS is how often throughput
and start are measured, STORMS how many storms there are beside each number of open connections, SECONDS the length of a
steady state. FLAGS are further flags of the job.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.lab.processes import LabError
from tests.programs.bench_pipeline.day import day
from tests.programs.bench_pipeline.facts import SECOND_US, Close, again
from tests.programs.bench_pipeline.job import Job
from tests.programs.bench_pipeline.lab import CATCH_UP_S, SINCE_CLOSES_S, Lab, lab

ROOT = Path(__file__).parents[3]
DIRECTORY = ROOT / "build" / "bench-pipeline"
RESULT = ROOT / "build" / "bench-pipeline.json"
OPEN = [int(count) for count in os.environ.get("OPEN", "1000,10000,100000").split(",")]
ROUNDS = int(os.environ.get("ROUNDS", "3"))
STORMS = int(os.environ.get("STORMS", "5"))
SECONDS = float(os.environ.get("SECONDS", "60"))
# A storm may be less than 10 % of the connections of any broker, network or workload.
FLAGS = ("--storm-percent", "0", *shlex.split(os.environ.get("FLAGS", "")))

FIRST_FLOWS, BACKLOG_FLOWS = 200_000, 600_000
# The JVM compiles what runs often for minutes after its start, and takes a multiple of the CPU time until then.
COMPILED_AFTER_S = 180.0
SILENCE_S, LONGER = 60.0, 1.3  # each storm's silence is so many times as long: the same silence would be one storm
REPLACED, REPLACED_PER_SECOND, BRIEF = 100, 5, 50  # pods, and brief connections of each second beside

Figures = dict[str, Any]


def main() -> int:
    """Measure; return the exit status."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    measurements: dict[str, Callable[[list[str]], Figures]] = {"throughput": throughput, "start": start, "idle": idle}
    measurements |= {f"open {count}": partial(with_open, count) for count in OPEN}
    measurements["day"] = after_a_day
    wanted = os.environ.get("ONLY", "throughput,start,idle,open").split(",")
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {"dates": {}, "measured": {}}
    dates, measured, missing = before["dates"], before["measured"], list[str]()
    for name, measure in measurements.items():
        if name.split()[0] in wanted:
            reasons: list[str] = []
            try:
                measured[name] = measure(reasons)
            except LabError as error:
                measured[name] = None
                reasons.append(str(error))
            missing += [f"{name}: {reason}" for reason in reasons]
            dates[name] = time.strftime("%Y-%m-%d")
            show(name, measured[name])
            # After each: an interrupted run keeps what it measured.
            found = {"cores": os.cpu_count(), "flags": FLAGS, "dates": dates, "measured": measured, "missing": missing}
            RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print(*(f"MISSING {reason}" for reason in missing), f"The same as JSON: {RESULT.relative_to(ROOT)}", sep="\n")
    return int(bool(missing))


def throughput(_: list[str]) -> Figures:
    """Measure events per CPU second of a backlog of flows that comes to a running job."""
    runs = [caught_up(number) for number in range(ROUNDS)]
    return {
        "events": spread(events for events, _ in runs),
        "cpu_s": spread(cpu_s for _, cpu_s in runs),
        "events_per_cpu_s": spread(events / cpu_s for events, cpu_s in runs),
    }


def caught_up(number: int) -> tuple[int, float]:
    """Send a backlog to a job that has processed one before; return its events and CPU seconds."""
    directory = DIRECTORY / f"throughput-{number}"
    with lab(directory, OPEN[0], flows=0) as made, Job(directory, made.bootstrap, *FLAGS) as job:
        made.open(made.fleet.ordinary())
        made.backlog(FIRST_FLOWS)
        made.warm_up(job)
        before_s = job.cpu_s()
        events = made.backlog(BACKLOG_FLOWS)
        made.until_read(job)
        return events, job.cpu_s() - before_s


def start(_: list[str]) -> Figures:
    """Measure the seconds from the job's start to its first alert. Its storm is in the topic before."""
    return {"first_alert_s": spread(first_alert(number) for number in range(ROUNDS))}


def first_alert(number: int) -> float:
    """Start a job; return the seconds until its first alert."""
    with lab(DIRECTORY / f"start-{number}", OPEN[0]) as made:
        victims, name = made.fleet.of_storm(0)
        made.open([*made.fleet.ordinary(), *victims], ago_s=SILENCE_S)
        made.storm(victims, SILENCE_S)
        began_s = time.time()
        with Job(made.directory, made.bootstrap, *FLAGS) as job:
            return made.alert_after_s(began_s, name, job)


def idle(_: list[str]) -> Figures:
    """Measure the job while the agents report open connections each second, and nothing else happens.

    Before that some connections are closed, and the job has given their verdicts.
    """
    with lab(DIRECTORY / "idle", OPEN[0], flows=0) as made, Job(made.directory, made.bootstrap, *FLAGS) as job:
        victims, name = made.fleet.of_storm(0)
        made.open([*made.fleet.ordinary(), *victims], ago_s=SILENCE_S)
        made.alert_after_s(made.storm(victims, SILENCE_S), name, job)
        made.warm_up(job)
        made.until_s(time.time() + COMPILED_AFTER_S, job)
        return {"connections": OPEN[0], **steady(made, job)}


def with_open(connections: int, missing: list[str]) -> Figures:
    """Measure the job with so many open connections, and brief ones beside them, from a steady state to its stop."""
    with (
        lab(DIRECTORY / f"open-{connections}", connections) as made,
        Job(made.directory, made.bootstrap, *FLAGS) as job,
    ):
        made.open_ordinary()
        made.brief = BRIEF
        made.warm_up(job)
        found = {"connections": connections, **steady(made, job), "alert_s": spread(alerts(made, job, missing))}
        found["false_idle_storms"] = false_idle_storms(made, job, missing)
        return {**found, "peak_pss_mib": max(job.pss_mib()), "stop_s": job.stop_s()}


def steady(made: Lab, job: Job) -> Figures:
    """Measure CPU, memory and batches in a steady state, in which each query ends at least one batch."""
    began_s, cpu_before_s = time.time(), job.cpu_s()

    def ended() -> dict[str, list[float]]:
        return {
            query: [batch.ended_s - batch.began_s for batch in batches if batch.ended_s > began_s]
            for query, batches in job.batches().items()
        }

    def is_over() -> bool:
        return time.time() - began_s > SECONDS and all(ended().values())

    made.until(is_over, "each query to end a batch", job, SECONDS + CATCH_UP_S)
    return {
        "cpu_percent": 100 * (job.cpu_s() - cpu_before_s) / (time.time() - began_s),
        "pss_mib": spread(job.pss_mib(began_s)),
        "batch_s": {query: spread(seconds) for query, seconds in ended().items()},
    }


def alerts(made: Lab, job: Job, missing: list[str]) -> list[float]:
    """Return the seconds from closes and reports to the alert, of each storm that has one."""
    storms = [made.fleet.of_storm(number) for number in range(STORMS)]
    made.open(victim for victims, _ in storms for victim in victims)
    opened_s, sent_s = time.time(), dict[str, float]()
    for number, (victims, name) in enumerate(storms):
        silence_s = SILENCE_S * LONGER**number
        made.until_s(opened_s + silence_s + SINCE_CLOSES_S, job)
        sent_s[name] = made.storm(victims, silence_s)
    found = []
    for name, since_s in sent_s.items():
        try:
            found.append(made.alert_after_s(since_s, name, job))
        except LabError as error:
            missing.append(str(error))
    return found


def false_idle_storms(made: Lab, job: Job, missing: list[str]) -> int | None:
    """Replace pods and restart a broker while brief connections come and go; return how many idle storms are reported.

    None if the job does not judge all of the closes.
    """
    began_s = time.time()
    for first in range(0, REPLACED, REPLACED_PER_SECOND):
        for number in range(first, first + REPLACED_PER_SECOND):
            replaced = made.fleet.of_pod(number)
            made.close(replaced, Close("client", ended=bool(number % 2), spread_us=30 * SECOND_US))
            made.open(again(replaced))
        made.second()
    of_broker = [each for each in made.fleet.of_broker(0) if each.pod.number >= REPLACED]
    made.close(of_broker, Close("server", exiting=True, ended=True, spread_us=30 * SECOND_US))
    made.open(again(of_broker))
    made.brief = 0
    try:
        made.until(lambda: job.verdicts().total() >= made.closed, f"{made.closed} verdicts", job, CATCH_UP_S)
        made.warm_up(job)
    except LabError as error:
        missing.append(str(error))
        return None
    return len(made.alerts.ids("idle_disconnects", began_s))


def after_a_day(_: list[str]) -> Figures:
    """Measure what a day leaves in the tables, and the seconds of a question about an hour of one topic."""
    found = day(DIRECTORY / "day", *FLAGS)
    return {**found, "hour_s": spread(found["hour_s"])}


def spread(values: Iterable[float]) -> Figures | None:
    """Return min, median and max, and how many values there are; None if there are none."""
    found = sorted(values)
    if not found:
        return None
    return {"min": found[0], "median": median(found), "max": found[-1], "values": len(found)}


def show(name: str, figures: Figures | None) -> None:
    """Print a table of a measurement."""
    print(f"\n{name:40}{'min':>12}{'median':>12}{'max':>12}", flush=True)
    for row, found in _flat(figures or {}):
        cells = found if isinstance(found, dict) else {"median": found}
        values = (cells.get(column) for column in ("min", "median", "max"))
        print(f"  {row:38}" + "".join(" " * 12 if value is None else f"{value:12,.1f}" for value in values), flush=True)


def _flat(figures: Figures) -> Iterator[tuple[str, Any]]:
    """Yield names and figures, those of objects of figures with both names."""
    for name, found in figures.items():
        if isinstance(found, dict) and "median" not in found:
            yield from ((f"{name} {inner}", figure) for inner, figure in found.items())
        else:
            yield name, found


if __name__ == "__main__":
    sys.exit(main())
