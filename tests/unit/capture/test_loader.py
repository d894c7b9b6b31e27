"""The message when the kernel refuses a backend: once, with the verifier's last line, and what was tried instead."""

from __future__ import annotations

import os
import re
import socket
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import kafka_probe
from kafka_probe.capture import programs as programs_module
from kafka_probe.capture.backends import RefusedError
from kafka_probe.capture.btf import Btf, read_btf
from kafka_probe.capture.cache import Cache, key_of
from kafka_probe.capture.compiler import Compiled, Map, compile_programs, origin
from kafka_probe.capture.link import START
from kafka_probe.capture.loader import Kernel, create_map, load
from kafka_probe.capture.options import Options
from kafka_probe.capture.programs import ORDER, Programs
from kafka_probe.connections.listing import Listing
from kafka_probe.errors import StartError
from tests.lab.processes import wait_until

pytestmark = pytest.mark.root

OPTIONS = Options((9,), watch_client=True, watch_server=True, agent_tgid=0, ring_bytes=1 << 16)
ARRAY = 2  # enum bpf_map_type
NO_RESULT = bytes([0x95, 0, 0, 0, 0, 0, 0, 0])  # returns what it never set


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_programs("tracepoint", OPTIONS, Btf())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that the tests share which are about other things than compiling."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache_dir(compiled: Compiled, tmp_path: Path) -> Path:
    """Return a cache of compiled programs, one function of which no verifier accepts."""
    refused = replace(compiled, functions=compiled.functions | {"run_send": NO_RESULT})
    Cache(tmp_path).write(key_of(origin(read_btf()), "tracepoint", OPTIONS.compiled_in()), refused.to_json())
    return tmp_path


def test_programs_read_what_differs_between_starts_from_its_map(compiled: Compiled) -> None:
    instructions = [*struct.iter_unpack("<BBhi", b"".join(compiled.functions.values()))]
    found = {(operation, registers >> 4) for operation, registers, _, number in instructions if number == START}
    assert found == {(0x18, 2)}  # 64-bit loads of an address in a map, BPF_PSEUDO_MAP_VALUE


def test_a_program_that_the_verifier_refuses_is_named_once_with_the_reason(cache_dir: Path) -> None:
    with pytest.raises(StartError) as error:
        Programs.load("tracepoint", "ring", OPTIONS, [], cache_dir)
    sentence = str(error.value)
    assert sentence.startswith("No backend works on this kernel: tracepoint: raw tracepoint sock_send_length: ")
    assert sentence.count("R0 !read_ok") == 1
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (1 << 31, "map rules: Cannot allocate memory; before kernel 5.11 maps are locked memory: raise `ulimit -l`"),
        (0, "map rules: Invalid argument"),
    ],
)
def test_a_map_that_the_kernel_refuses_is_named_with_what_to_do(entries: int, message: str) -> None:
    with pytest.raises(StartError, match=re.escape(message)):
        create_map("rules", Map(ARRAY, key_bytes=4, value_bytes=76, entries=entries, flags=0), OPTIONS)


def test_programs_that_were_compiled_where_there_were_fewer_cpus_fit_this_host(tmp_path: Path) -> None:
    with_buffers = replace(OPTIONS, perf_buffers={0: 0})  # that there are any is all that the compiler asks
    compiled = compile_programs("tracepoint", with_buffers, Btf())
    maps = {
        number: (name, replace(facts, entries=1) if name == "events" else facts)
        for number, (name, facts) in compiled.maps.items()
    }
    key = key_of(origin(read_btf()), "tracepoint", with_buffers.compiled_in())
    Cache(tmp_path).write(key, replace(compiled, maps=maps).to_json())
    with closing(Programs.load("tracepoint", "perf", OPTIONS, [], tmp_path)) as programs:
        assert programs.backend == "tracepoint"


def test_a_backend_that_fails_keeps_nothing_in_the_kernel(cache_dir: Path) -> None:
    kernel, before = Kernel(Cache(cache_dir)), os.listdir("/proc/self/fd")
    with pytest.raises(RefusedError, match="R0 !read_ok"):
        load("tracepoint", OPTIONS, [], kernel)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_no_module_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("resource", "tempfile", "ctypes", "struct"):
        (tmp_path / f"{module}.py").write_text("from pathlib import Path; Path('planted').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(kafka_probe.__file__).parents[1]))
    with pytest.raises(StartError, match="KeyError: 'none'"), closing(Programs.load("none", "ring", OPTIONS, [])):
        pass
    with closing(Listing((9,), "both", Path("/proc/self/ns/net"), 0)) as listing:
        wait_until(lambda: listing.take(1) is not None, "the list")
    assert caplog.messages == []
    assert not (tmp_path / "planted").exists()


def test_a_start_with_compiled_programs_in_the_cache_maps_no_bcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries: list[str] = []
    monkeypatch.setattr(programs_module, "_drop_from_page_cache", libraries.append)
    instructions = []
    for tgid in (1, 2):
        with closing(Programs.load("auto", "auto", replace(OPTIONS, agent_tgid=tgid), [], tmp_path)) as programs:
            instructions.append(programs.instructions)
    assert ["libbcc" in str(mapped) for mapped in libraries] == [True, False]
    assert instructions[0] == instructions[1]


def test_the_kernel_measures_the_programs_from_when_it_is_asked_to(shared: Path) -> None:
    with closing(Programs.load("auto", "auto", OPTIONS, [], shared)) as programs:
        assert programs.run_time_ns() is None
        assert programs.measure() == ""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.create_connection(listener.getsockname()).close()
        assert programs.run_time_ns()


def test_where_the_host_measures_nobody_need_ask(shared: Path) -> None:
    with closing(Programs.load("auto", "auto", OPTIONS, [], shared)) as programs:
        assert programs.run_time_ns() is None
        switch = Path("/proc/sys/kernel/bpf_stats_enabled")
        switch.write_text("1")
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                socket.create_connection(listener.getsockname()).close()
            assert programs.run_time_ns()
        finally:
            switch.write_text("0")


def test_the_first_backend_that_works_is_taken_and_why_not_the_others_is_known(shared: Path) -> None:
    with closing(Programs.load("auto", "auto", OPTIONS, [], shared)) as programs:
        tried = [*programs.refused, programs.backend]
        assert tried == list(ORDER[: len(tried)])
        assert all(programs.refused.values())
        assert all(programs.instructions.values())
