"""The message when the kernel refuses a backend: once, with the verifier's last line, and what was tried instead."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_probe.capture import programs as programs_module
from kafka_probe.capture.btf import Btf, read_btf
from kafka_probe.capture.cache import Cache, key_of
from kafka_probe.capture.compiler import Map, compile_programs, origin
from kafka_probe.capture.loader import create_map
from kafka_probe.capture.options import Options
from kafka_probe.capture.programs import ORDER, Programs
from kafka_probe.errors import StartError

pytestmark = pytest.mark.root

OPTIONS = Options((9,), watch_client=True, watch_server=True, agent_tgid=0, ring_bytes=1 << 16)
ARRAY = 2  # enum bpf_map_type
NO_RESULT = bytes([0x95, 0, 0, 0, 0, 0, 0, 0])  # returns what it never set


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A cache of compiled programs, one function of which no verifier accepts."""
    compiled = compile_programs("tracepoint", OPTIONS, Btf())
    refused = replace(compiled, functions=compiled.functions | {"run_send": NO_RESULT})
    Cache(tmp_path).write(key_of(origin(read_btf()), "tracepoint", OPTIONS.compiled_in()), refused.to_json())
    return tmp_path


def test_a_program_that_the_verifier_refuses_is_named_once_with_the_reason(cache_dir: Path) -> None:
    with pytest.raises(StartError) as error:
        Programs.load("tracepoint", "ring", OPTIONS, [], cache_dir)
    sentence = str(error.value)
    assert sentence.startswith("No backend works on this kernel: tracepoint: raw tracepoint sock_send_length: ")
    assert sentence.count("R0 !read_ok") == 1
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (1 << 31, "map rules: Cannot allocate memory; before kernel 5.11 maps are locked memory: raise `ulimit -l`"),
        (0, "map rules: Invalid argument"),
    ],
)
def test_a_map_that_the_kernel_refuses_is_named_with_what_to_do(entries: int, said: str) -> None:
    with pytest.raises(StartError, match=re.escape(said)):
        create_map("rules", Map(ARRAY, key_bytes=4, value_bytes=76, entries=entries, flags=0))


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


def test_the_kernel_measures_the_programs_from_when_it_is_asked_to() -> None:
    with closing(Programs.load("auto", "auto", OPTIONS, [])) as programs:
        assert programs.run_time_ns() is None
        assert programs.measure() == ""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.create_connection(listener.getsockname()).close()
        assert programs.run_time_ns()


def test_where_the_host_measures_nobody_need_ask() -> None:
    with closing(Programs.load("auto", "auto", OPTIONS, [])) as programs:
        assert programs.run_time_ns() is None
        switch = Path("/proc/sys/kernel/bpf_stats_enabled")
        switch.write_text("1")
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                socket.create_connection(listener.getsockname()).close()
            assert programs.run_time_ns()
        finally:
            switch.write_text("0")


def test_the_first_backend_that_works_is_taken_and_why_not_the_others_is_known() -> None:
    with closing(Programs.load("auto", "auto", OPTIONS, [])) as programs:
        tried = [*programs.refused, programs.backend]
        assert tried == list(ORDER[: len(tried)])
        assert all(programs.refused.values())
        assert all(programs.instructions.values())
