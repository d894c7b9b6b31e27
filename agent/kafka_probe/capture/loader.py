"""The loader process: compiles the BPF programs or reads them from the cache, attaches them and sends the descriptors.

Run as `python -m kafka_probe.capture.loader SOCKET` with the request of programs.py on standard input. Exit status 0:
the answer and the descriptors are in the socket; 3: the reason of the failure is. It never reads samples. If the
request is only to compile, it leaves nothing attached, and the answer has no descriptors.
"""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path

from kafka_probe.capture import bpf
from kafka_probe.capture.backends import BACKENDS, Hook, RefusedError, attach, refusal, type_ids
from kafka_probe.capture.backends import load as load_program
from kafka_probe.capture.btf import Btf, read_btf
from kafka_probe.capture.cache import Cache, key_of
from kafka_probe.capture.compiler import Compiled, Map, compile_programs, origin
from kafka_probe.capture.link import EVENTS, START, link
from kafka_probe.capture.options import MAPS, KernelRule, Options, map_contents
from kafka_probe.errors import StartError

_CLOCK_MONOTONIC_COARSE = 6  # of include/uapi/linux/time.h; its resolution is a jiffy
# Before 5.11 the error is EPERM, because maps count as locked memory.
_NO_MEMORY = (errno.ENOMEM, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Attached programs. maps: descriptors in the order of MAPS; instructions: how many the verifier processed."""

    maps: list[int]
    programs: list[int]
    links: list[int]
    instructions: dict[str, int]


class Kernel:
    """Compiled programs and type ids for the running kernel, from the cache or made anew from its BTF.

    kept: the cache has all those that this object has returned.

    Raises:
        StartError: the kernel has no BTF, or the programs cannot be compiled.
    """

    def __init__(self, cache: Cache) -> None:
        self.kept = True
        self._cache = cache
        self._origin = origin(read_btf())

    @cached_property
    def _btf(self) -> Btf:
        return Btf()

    @cached_property
    def type_ids(self) -> dict[str, int]:
        """Return the ids of `backends.type_ids`."""
        return dict(json.loads(self._cached(lambda: json.dumps(type_ids(self._btf)), "type ids")))

    def programs(self, backend: str, options: Options) -> Compiled:
        """Return the programs of a backend.

        Raises:
            RefusedError: they are not in the cache, and the kernel does not support the backend.
        """

        def compile_supported() -> str:
            if reason := refusal(backend, self.type_ids):
                raise RefusedError(reason)
            return compile_programs(backend, options, self._btf).to_json()

        return Compiled.from_json(self._cached(compile_supported, backend, options.compiled_in()))

    def _cached(self, make: Callable[[], str], *parts: object) -> str:
        key = key_of(self._origin, *parts)
        value = self._cache.read(key)
        if value is None:
            value = make()
            # If an upgrade has replaced the sources meanwhile, the value is not of this key.
            self.kept &= origin(read_btf()) == self._origin and self._cache.write(key, value)
        return value


def load(backend: str, options: Options, rules: Iterable[KernelRule], kernel: Kernel) -> Loaded:
    """Load and attach the programs of a backend.

    Raises:
        RefusedError: the kernel refuses a program.
        StartError: the programs cannot be compiled, or a map cannot be created.
    """
    compiled, ids = kernel.programs(backend, options), kernel.type_ids
    hooks, functions = BACKENDS[backend], compiled.functions
    with ExitStack() as unless_loaded:

        def held(fd: int) -> int:
            unless_loaded.callback(os.close, fd)
            return fd

        def load_one(hook: Hook) -> bpf.Program:
            linked = link(functions[hook.program], functions, descriptors)
            program = load_program(hook, linked, ids)
            held(program.fd)
            return program

        created = {n: (name, held(create_map(name, layout, options))) for n, (name, layout) in compiled.maps.items()}
        maps = dict(created.values())
        fill_maps(maps, options, rules)
        named = {EVENTS: maps["events"], START: maps["start"]}
        descriptors = named | {number: fd for number, (_, fd) in created.items()}
        # The verifier takes most of a start with compiled programs; it checks several programs at the same time.
        with ThreadPoolExecutor(len(hooks)) as threads:
            programs = list(threads.map(load_one, hooks))
        links = [held(attach(hook, program)) for hook, program in zip(hooks, programs, strict=True)]
        unless_loaded.pop_all()
    instructions = {hook.program: program.instructions for hook, program in zip(hooks, programs, strict=True)}
    return Loaded([maps[name] for name in MAPS], [program.fd for program in programs], links, instructions)


def create_map(name: str, layout: Map, options: Options) -> int:
    # The compiler gives `events` an entry per possible CPU of its own host, which may have had fewer.
    cpus = max(options.perf_buffers, default=-1) + 1 if name == "events" else 0
    try:
        return bpf.create_map(name, *astuple(replace(layout, entries=max(layout.entries, cpus))))
    except OSError as error:
        memory = "; before kernel 5.11 maps are locked memory: raise `ulimit -l`, or set a smaller --ring-size-bytes"
        raise StartError(f"map {name}: {error.strerror}{memory if error.errno in _NO_MEMORY else ''}") from None


def fill_maps(maps: Mapping[str, int], options: Options, rules: Iterable[KernelRule]) -> None:
    """Write what differs between starts, the rules, and the perf buffers if there are any, into the maps by name."""
    hz = round(1 / time.clock_getres(_CLOCK_MONOTONIC_COARSE))
    start = "start", 0, struct.pack("<III", options.agent_tgid, options.netns, hz)  # struct start of bpf/maps.h
    buffers = (("events", cpu, struct.pack("<I", fd)) for cpu, fd in options.perf_buffers.items())
    for name, index, value in (start, *map_contents(rules), *buffers):
        try:
            bpf.write_map(maps[name], struct.pack("<I", index), value)
        except OSError as error:
            raise StartError(f"map {name}, index {index}: {error.strerror}") from None
    try:
        bpf.freeze_map(maps["start"])
    except OSError as error:
        raise StartError(f"map start cannot be frozen: {error.strerror}") from None


def load_first(backends: Iterable[str], options: Options, rules: list[KernelRule], cache: Cache) -> tuple[str, Loaded]:
    """Return the answer (JSON) and the programs of the first backend that works; StartError if none does."""
    kernel = Kernel(cache)
    refused: dict[str, str] = {}
    for backend in backends:
        try:
            loaded = load(backend, options, rules, kernel)
        except (RefusedError, StartError) as error:
            refused[backend] = str(error)
        else:
            answer = {
                "backend": backend,
                "refused": refused,
                "instructions": loaded.instructions,
                "libraries": libraries(),
                "cache_problems": cache.problems,
            }
            return json.dumps(answer), loaded
    raise _no_backend(refused)


def compile_all(backends: Iterable[str], options: Options, cache: Cache) -> str:
    """Put all that `load` needs of the supported backends into the cache, and return the answer (JSON).

    All backends, because an agent with fewer rights may have to use another than root.

    Raises:
        StartError: no backend is supported.
    """
    kernel = Kernel(cache)
    refused: dict[str, str] = {}
    backends = [*backends]
    for backend in backends:
        try:
            kernel.programs(backend, options)
        except (RefusedError, StartError) as error:
            refused[backend] = str(error)
    if len(refused) == len(backends):
        raise _no_backend(refused)
    complete = bool(kernel.type_ids) and kernel.kept
    return json.dumps({"libraries": libraries(), "cache_problems": cache.problems, "complete": complete})


def _no_backend(refused: Mapping[str, str]) -> StartError:
    reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
    return StartError(f"No backend works on this kernel: {reasons}")


def libraries() -> list[str]:
    """Return the paths of the files that this process has mapped."""
    return sorted(set(re.findall(r" (/\S+)$", Path("/proc/self/maps").read_text(), re.MULTILINE)))


def main() -> None:
    request = json.load(sys.stdin)
    given = request["options"]
    buffers = {int(cpu): fd for cpu, fd in given["perf_buffers"].items()}
    options = Options(**{**given, "ports": tuple(given["ports"]), "perf_buffers": buffers})
    rules = [KernelRule(**rule) for rule in request["rules"]]
    cache = Cache(Path(request["cache_dir"]) if request["cache_dir"] else None)
    # Only kernels before 5.11 count maps and programs as locked memory.
    with suppress(ValueError):  # not permitted
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with socket.socket(fileno=int(sys.argv[1])) as agent:
        try:
            if request["only_compile"]:
                answer, loaded = compile_all(request["backends"], options, cache), Loaded([], [], [], {})
            else:
                answer, loaded = load_first(request["backends"], options, rules, cache)
        except StartError as error:
            agent.sendall(str(error).encode())
            sys.exit(error.exit_code)
        socket.send_fds(agent, [answer.encode()], [*loaded.maps, *loaded.programs, *loaded.links])


if __name__ == "__main__":
    main()
