"""Runs the golden conversations on other kernels, with every backend and buffer, and collects the results.

What is seen of a conversation must be the same with every backend and buffer of a kernel, except where a backend has
counted that it could not read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kafka_probe.capture.backends import SAFE_TRAMPOLINES
from kafka_probe.capture.btf import Btf
from kafka_probe.capture.cache import key_of, sealed
from kafka_probe.capture.compiler import compile_programs, origin
from kafka_probe.capture.options import Options
from tests.kernel.archive import CACHE, Kernel, kernel
from tests.kernel.machine import Job, run
from tests.kernel.root import root_disk
from tests.lab.capture import RING_BYTES
from tests.lab.processes import LabError

ROOT = Path(__file__).parents[2]
LOGS = CACHE / "logs"
BACKENDS = ("fentry", "kprobe", "tracepoint")
BUFFERS = ("ring", "perf")
TIMEOUT_S = 7200  # a bound for a machine that hangs; several share the processors with whatever else runs here
PORT = 9092
TRACEPOINTS = (b"btf_trace_sock_send_length", b"btf_trace_sock_recv_length")
_SHORT = 200
_UNREADABLE = {"buffer_unreadable", "gap", "program_skipped"}
FILES = {name: ROOT / name for name in ("agent", "bpf", "tests", "pyproject.toml")}
SCRIPT = """
export HOME=/root PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 PYTHONPATH=agent:. PYTHONUNBUFFERED=1
export GOLDEN_PORT={port} GOLDEN_CACHE=$PWD/programs
exec python3 -m tests.kernel.guest {arguments}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a backend with a buffer: passed, failed or absent.

    tests: those that passed; instructions: verified, by program.
    """

    backend: str
    buffer: str
    result: str
    reason: str = ""
    tests: int = 0
    seconds: float = 0.0
    instructions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tried:
    """A kernel and the runs on it. differences: conversations that two runs did not see alike."""

    series: str
    release: str
    package_version: str
    runs: Sequence[Run]
    differences: Sequence[str]

    @property
    def passed(self) -> bool:
        return not self.differences and not any(run.result == "failed" for run in self.runs)


def matrix(series: Iterable[str], backends: Sequence[str]) -> Iterator[Tried]:
    """Try the kernels, and yield each once all of its backends have run.

    Each backend has a machine of its own, which keeps one processor busy; several run at once.

    Raises:
        LabError: something that the machines are made of is missing.
    """
    kernels = [kernel(name) for name in series]
    for found in kernels:
        compile_for_guests(found, backends, BUFFERS)
    root = root_disk()
    with ThreadPoolExecutor(max(len(backends), os.cpu_count() or 1)) as pool:

        def start(found: Kernel, backend: str) -> Any:
            return pool.submit(_try_backend, found, root, backend)

        lanes = [(found, [start(found, backend) for backend in backends]) for found in kernels]
        yield from (_tried(found, [lane.result() for lane in started]) for found, started in lanes)


def programs(found: Kernel) -> Path:
    """Return the folder of the programs that were compiled for a kernel."""
    return found.folder / "programs"


def compile_for_guests(
    found: Kernel, backends: Iterable[str], buffers: Sequence[str], cgroup_subsystem: str | None = None
) -> None:
    """Compile the programs for guests: under emulation, that would take longer than everything else."""
    programs(found).mkdir(exist_ok=True)
    types, sources = Btf(found.btf), origin(found.btf.read_bytes())
    options = Options((PORT,), True, True, agent_tgid=0, ring_bytes=RING_BYTES, cgroup_subsystem=cgroup_subsystem)
    wanted = {}
    for backend in backends:
        for buffer in buffers:
            by_cpu = {0: 0} if buffer == "perf" else {}  # that there are any is all that the compiler asks
            with_buffer = replace(options, perf_buffers=by_cpu)
            wanted[key_of(sources, backend, with_buffer.compiled_in())] = backend, with_buffer
    present = {file.name: file for file in programs(found).iterdir()}
    for key in present.keys() - wanted.keys():
        present[key].unlink()
    for key in wanted.keys() - present.keys():
        (programs(found) / key).write_bytes(sealed(key, compile_programs(*wanted[key], types).to_json()))


@dataclass(frozen=True, slots=True)
class Seen:
    """A run, and the observations and losses of each of its conversations."""

    run: Run
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)


def _try_backend(found: Kernel, root: Path, backend: str) -> list[Seen]:
    if reason := _absence(found, backend):
        return [Seen(Run(backend, buffer, "absent", reason)) for buffer in BUFFERS]
    arguments = f"kernel {' '.join(f'{backend}-{buffer}' for buffer in BUFFERS)}"
    log = LOGS / f"{found.series}-{backend}.log"
    files = {**FILES, "programs": programs(found)}
    try:
        outcome = run(found, root, Job(files, SCRIPT.format(arguments=arguments, port=PORT)), log, timeout_s=TIMEOUT_S)
    except LabError as error:
        return [Seen(Run(backend, buffer, "failed", str(error))) for buffer in BUFFERS]
    return [_read(backend, buffer, outcome.results.get(f"{backend}-{buffer}.json"), log) for buffer in BUFFERS]


def _absence(found: Kernel, backend: str) -> str:
    """Return what the kernel lacks for a backend, from its type information."""
    if backend == "fentry" and not found.knows(SAFE_TRAMPOLINES.encode()):
        return f"no {SAFE_TRAMPOLINES}"
    lacks = [name for name in TRACEPOINTS if not found.knows(name)]
    return f"no {lacks[0].decode().removeprefix('btf_trace_')}" if backend == "tracepoint" and lacks else ""


def _read(backend: str, buffer: str, report: bytes | None, log: Path) -> Seen:
    if report is None:
        return Seen(Run(backend, buffer, "failed", f"it ended without a report, see {log}"))
    results = json.loads(report)
    failures = [f"{name}:\n{text}" for name, text in results["failures"].items()]
    passed = sum(outcome == "passed" for outcome in results["tests"].values())
    result = "failed" if results["status"] or failures or not passed else "passed"
    facts = passed, results["seconds"], results["instructions"]
    return Seen(Run(backend, buffer, result, "\n".join(failures), *facts), results["seen"])


def _tried(found: Kernel, lanes: Iterable[list[Seen]]) -> Tried:
    runs = [seen for lane in lanes for seen in lane]
    unlike = list(differences(runs))
    return Tried(found.series, found.release, found.package_version, [seen.run for seen in runs], unlike)


def differences(runs: Sequence[Seen]) -> Iterator[str]:
    """Return the conversations that runs report differently without having counted a loss."""
    for name in sorted({name for seen in runs for name in seen.seen}):
        reports = {f"{seen.run.backend}-{seen.run.buffer}": seen.seen[name] for seen in runs if name in seen.seen}
        whole = {run: what for run, what in reports.items() if _UNREADABLE.isdisjoint(what["lost"])}
        first, *others = whole or [""]
        for other in others:
            if whole[other] != whole[first]:
                unlike = _more(whole[other], whole[first]), _more(whole[first], whole[other])
                yield f"{name}: {other} saw {unlike[0]}, {first} saw {unlike[1]}"


def _more(what: dict[str, Any], than: dict[str, Any]) -> str:
    """Return what only this run saw of an end, in short, and all that it lost."""
    more = Counter(map(str, what["seen"])) - Counter(map(str, than["seen"]))
    ends = [f"{count} of {end[:_SHORT]}" for end, count in more.items()]
    return f"{'; '.join(ends) or 'nothing more'} (lost: {what['lost']})"
