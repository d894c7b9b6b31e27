"""`--memory-limit`: how it is divided, and what every table does at its bound."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kafka_probe.capture.btf import Btf
from kafka_probe.capture.compiler import Map, compile_programs
from kafka_probe.capture.options import Options
from kafka_probe.config import Config
from kafka_probe.errors import StartError
from kafka_probe.memory import _ITEM_BYTES, DEFAULT, KERNEL_CONNECTION_BYTES, MIB, TLS_BYTES, bounds_of
from kafka_probe.protocol.api_keys import ApiKey

PRODUCE, FETCH, METADATA = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA


def limited(**fields: object) -> Config:
    return Config(node="node-1", **fields)  # type: ignore[arg-type]  # read by pydantic


def test_the_default_limit_has_slots_for_a_hundred_thousand_connections() -> None:
    assert bounds_of(limited()).connections >= 100_000
    assert bounds_of(limited(memory_limit="1GiB")).connections > 200_000


def test_a_limit_below_what_the_settings_need_is_refused_with_the_sum() -> None:
    with pytest.raises(StartError, match=r"--memory-limit 100 MiB is too low: 255 MiB are needed .*ring .* 8, "):
        bounds_of(limited(memory_limit="100MiB"))
    needed = bounds_of(limited(memory_limit="512MiB", ring_size_bytes="256MiB"))
    assert 0 < needed.connections < DEFAULT.connections
    with pytest.raises(StartError, match="759 MiB are needed"):
        bounds_of(limited(ring_size_bytes="512MiB"))


def test_tls_connections_have_a_part_of_the_limit() -> None:
    with_tls = bounds_of(limited(listen_certfile="cert.pem", memory_limit="600MiB"))
    assert with_tls == bounds_of(limited(memory_limit=(600 * MIB) - TLS_BYTES))


def test_a_limit_below_what_the_compiler_takes_is_refused() -> None:
    with pytest.raises(StartError, match=r"--memory-limit 300 MiB is too low: compiling the programs takes 480 MiB"):
        bounds_of(limited(memory_limit="300MiB"))


def test_parts_and_tables_together_are_no_more_than_the_limit() -> None:
    bounds = bounds_of(limited())
    tables = [
        getattr(bounds, field.name) * _ITEM_BYTES.get(field.name, 1)  # a bound of items, or of bytes
        for field in fields(bounds)
    ]
    # Interpreter, frames, HTTP, ring, waiting events, in transit, metrics, recorder with waiting frames.
    fixed = 80 + 24 + 24 + 8 + 20 + 16 + 15 + 36
    assert 0.95 * (512 - fixed) * MIB < sum(tables) < (512 - fixed) * MIB
    assert {*_ITEM_BYTES} == {field.name for field in fields(bounds) if not field.name.endswith("_bytes")}


SLAB_BYTES = (16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)  # kernel/bpf/memalloc.c
ELEMENT_BYTES = 48  # struct htab_elem, before the key
BUCKET_BYTES = 16  # struct bucket
LIST_NODE_BYTES = 8  # before an element that is allocated when it is used


def kernel_bytes(of: Map, *, beforehand: bool) -> int:
    """Return the memory of a full hash map, by kernel/bpf/hashtab.c; values are aligned to 8 bytes."""
    element = ELEMENT_BYTES + of.key_bytes + -(-of.value_bytes // 8) * 8
    allocated = element if beforehand else min(slab for slab in SLAB_BYTES if slab >= element + LIST_NODE_BYTES)
    return of.entries * allocated + BUCKET_BYTES * (1 << (of.entries - 1).bit_length())


@pytest.mark.root
@pytest.mark.parametrize("limit", ["480MiB", "512MiB", "1GiB"])
def test_maps_take_no_more_of_a_connection_than_was_reckoned(limit: str) -> None:
    most = bounds_of(limited(memory_limit=limit)).connections
    options = Options((9092,), True, True, agent_tgid=0, ring_bytes=8 * MIB, max_connections=most)
    maps = dict(compile_programs("tracepoint", options, Btf()).maps.values())
    assert maps["held"].entries == maps["conns"].entries // 32
    growing = sum(kernel_bytes(maps[name], beforehand=False) for name in ("conns", "unfinished"))
    assert growing + kernel_bytes(maps["held"], beforehand=True) <= most * KERNEL_CONNECTION_BYTES
