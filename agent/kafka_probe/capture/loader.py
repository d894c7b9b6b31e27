"""The loader process: compiles the BPF programs, fills their maps, attaches them and sends the descriptors.

Run as `python -m kafka_probe.capture.loader SOCKET` with the request of programs.py on standard input. Exit status 0:
the answer and the descriptors are in the socket; 3: the reason of the failure is. It never reads samples.
"""

from __future__ import annotations

import errno
import json
import re
import resource
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from kafka_probe.capture import bpf
from kafka_probe.capture.backends import BACKENDS, RefusedError, attach, refusal
from kafka_probe.capture.backends import load as load_program
from kafka_probe.capture.btf import Btf
from kafka_probe.capture.compiler import Map, compile_programs
from kafka_probe.capture.link import EVENTS, link
from kafka_probe.capture.options import Options, Rule, map_contents
from kafka_probe.errors import StartError

# Maps whose descriptors the agent needs, besides those of programs and links: see programs.py.
MAPS = ("events", "counters", "conns")
# Before 5.11 the error is EPERM, because maps count as locked memory.
_NO_MEMORY = (errno.ENOMEM, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Attached programs. maps: descriptors in the order of MAPS; instructions: how many the verifier processed."""

    maps: list[int]
    programs: list[int]
    links: list[int]
    instructions: dict[str, int]


def load(backend: str, options: Options, rules: Iterable[Rule], btf: Btf, kept: Path | None) -> Loaded:
    """Compile, load and attach the programs of a backend.

    Raises:
        RefusedError: the kernel refuses a program.
        StartError: the programs cannot be compiled, or a map cannot be created.
    """
    if reason := refusal(backend, btf):
        raise RefusedError(reason)
    compiled = compile_programs(backend, options, btf, kept)
    created = {number: (name, create_map(name, facts)) for number, (name, facts) in compiled.maps.items()}
    maps = dict(created.values())
    for name, place, value in map_contents(rules):
        bpf.write_map(maps[name], struct.pack("<I", place), value)
    for cpu, fd in options.perf_buffers.items():
        bpf.write_map(maps["events"], struct.pack("<I", cpu), struct.pack("<I", fd))
    descriptors = {EVENTS: maps["events"], **{number: fd for number, (_, fd) in created.items()}}
    programs = []
    for hook in BACKENDS[backend]:
        linked = link(compiled.functions[hook.program], compiled.functions, descriptors, options.agent_tgid)
        programs.append((hook, load_program(hook, linked, btf)))
    links = [attach(hook, program) for hook, program in programs]
    instructions = {hook.program: program.instructions for hook, program in programs}
    return Loaded([maps[name] for name in MAPS], [program.fd for _, program in programs], links, instructions)


def create_map(name: str, facts: Map) -> int:
    try:
        return bpf.create_map(name, *astuple(facts))
    except OSError as error:
        memory = "; before kernel 5.11 maps are locked memory: raise `ulimit -l`, or set a smaller --ring-size-bytes"
        raise StartError(f"map {name}: {error.strerror}{memory if error.errno in _NO_MEMORY else ''}") from None


def load_first(backends: Iterable[str], options: Options, rules: list[Rule], kept: Path | None) -> tuple[str, Loaded]:
    """Return the answer (JSON) and the programs of the first backend that works; StartError if none does."""
    btf = Btf()
    refused: dict[str, str] = {}
    for backend in backends:
        try:
            loaded = load(backend, options, rules, btf, kept)
        except (RefusedError, StartError) as error:
            refused[backend] = str(error)
        else:
            answer = {
                "backend": backend,
                "refused": refused,
                "instructions": loaded.instructions,
                "libraries": libraries(),
            }
            return json.dumps(answer), loaded
    raise StartError("No backend works on this kernel: " + "; ".join(f"{name}: {why}" for name, why in refused.items()))


def libraries() -> list[str]:
    """Return the paths of the files that this process has mapped."""
    return sorted(set(re.findall(r" (/\S+)$", Path("/proc/self/maps").read_text(), re.MULTILINE)))


def main() -> None:
    request = json.load(sys.stdin)
    given = request["options"]
    buffers = {int(cpu): fd for cpu, fd in given["perf_buffers"].items()}
    options = Options(**{**given, "ports": tuple(given["ports"]), "perf_buffers": buffers})
    rules = [Rule(**rule) for rule in request["rules"]]
    kept = Path(request["kept"]) if request["kept"] else None
    # Only kernels before 5.11 count maps and programs as locked memory.
    with suppress(ValueError):  # not permitted
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with socket.socket(fileno=int(sys.argv[1])) as agent:
        try:
            answer, loaded = load_first(request["backends"], options, rules, kept)
        except StartError as error:
            agent.sendall(str(error).encode())
            sys.exit(error.exit_code)
        socket.send_fds(agent, [answer.encode()], [*loaded.maps, *loaded.programs, *loaded.links])


if __name__ == "__main__":
    main()
