"""The C sources as BCC compiles them: headers include what they use, and wrong members do not compile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_probe.capture.btf import Btf
from kafka_probe.capture.compiler import compile_programs, defines, sources
from kafka_probe.capture.options import Options
from tests.lab.bpf_programs import Compile
from tests.lab.bpf_stack import LIMIT, deepest

pytestmark = pytest.mark.root

OPTIONS = Options((9,), watch_client=True, watch_server=True, agent_tgid=0, ring_bytes=1 << 16)
HEADERS = sorted(path.name for path in sources().glob("*.h"))
READ = "u64 read(u64 sk) {{ return READ(sk, {}); }}"


@pytest.fixture(scope="module")
def flags() -> list[str]:
    return [f"-D{name}={value}" for name, value in defines("tracepoint", OPTIONS, Btf()).items()]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_needs_no_other_before_it(header: str, flags: list[str], compile_bpf: Compile) -> None:
    compile_bpf("", header, flags)


def test_a_declared_member_is_read(flags: list[str], compile_bpf: Compile) -> None:
    compile_bpf(READ.format("sock, sk_err"), "kernel_structs.h", flags)


@pytest.mark.parametrize("member", ["sock, sk_eror", "tcp_sock, sk_err", "no_such_struct, sk_err"])
def test_a_wrong_member_does_not_compile(member: str, flags: list[str], compile_bpf: Compile) -> None:
    with pytest.raises(Exception, match="Failed to compile"):
        compile_bpf(READ.format(member), "kernel_structs.h", flags)


@pytest.mark.parametrize("backend", ["tracepoint", "kprobe", "fentry"])
def test_no_program_takes_more_stack_than_older_kernels_allow(backend: str) -> None:
    functions = compile_programs(backend, replace(OPTIONS, perf_buffers={0: 0}), Btf()).functions
    taken = {name: deepest(functions, name) for name in functions if name.startswith("on_")}
    assert 400 < max(taken.values()) <= LIMIT
