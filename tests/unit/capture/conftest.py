"""Small BPF programs of the tests' own, compiled as the product's are: without kernel headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_probe.capture.compiler import flatten, sources

Compile = Callable[[str], Any]


@pytest.fixture
def compile_bpf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compile]:
    """BCC's object for a program text behind bpf/sample.h; detached and freed at the end."""
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(sources()))
    made: list[Any] = []

    def compile_text(text: str) -> Any:
        from bcc import BPF

        made.append(BPF(text=f"{flatten(sources() / 'sample.h')}\n{text}".encode()))
        return made[-1]

    yield compile_text
    for bpf in made:
        bpf.cleanup()
