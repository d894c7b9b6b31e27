"""Compiles small BPF programs of the tests as the product's are compiled: without kernel headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kafka_probe.capture.compiler import flatten, sources
from tests.lab.bpf_programs import Compile


@pytest.fixture
def compile_bpf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compile]:
    """Yield a function that compiles a text behind a header of bpf/ to BCC's object.

    The objects are detached and freed at the end.
    """
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(sources()))
    made: list[Any] = []

    def compile_text(text: str, header: str = "sample.h", flags: Sequence[str] = ()) -> Any:
        from bcc import BPF

        made.append(BPF(text=f"{flatten(sources() / header)}\n{text}".encode(), cflags=list(flags)))
        return made[-1]

    yield compile_text
    for bpf in made:
        bpf.cleanup()
