"""Maps of the kernel are read in batches."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from kafka_probe.capture import bpf

pytestmark = pytest.mark.root

HASH = 1  # enum bpf_map_type
HEAD = np.dtype([("first", "<u8"), ("second", "<u8")])


@pytest.mark.parametrize("elements", [0, 1, 2 * bpf._AT_ONCE + 1])
def test_the_beginnings_of_all_values_of_a_hash_map_are_read(elements: int) -> None:
    table = bpf.create_map("numbers", HASH, 8, 24, elements + 1, 0)
    try:
        for number in range(elements):
            bpf.write_map(table, struct.pack("<Q", number), struct.pack("<QQQ", 1 << 63 | number, number, number))
        heads = np.concatenate([*bpf.value_heads(table, HEAD)])
        assert sorted(heads.tolist()) == [(1 << 63 | number, number) for number in range(elements)]
    finally:
        os.close(table)
