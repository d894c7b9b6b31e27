"""What the kernel leaves of a frame, done here on whole frames: record sets become stubs, and the limits hold.

Record sets are found by kio, which reads the frame; it reads every version that our clients speak.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kafka_probe.protocol.rules import copy_rules
from tests.recorded.oracle import leaves, read_body
from tests.recorded.recording import Request

_RULES = {(rule.api_key, rule.api_version): rule for rule in copy_rules()}
_BATCH_OVERHEAD = 12  # base offset and length, before the bytes that the length counts
_BATCH = struct.Struct(">qiibIhiqqqhii")  # of magic 2: base offset to record count
_TRANSACTIONAL, _CONTROL, _CODEC = 0x10, 0x20, 0x07
_COUNTED = 0  # enum set_status of bpf/record.h


def request_data(request: Request) -> tuple[bytes, bool]:
    """What leaves of a request, from the client id on, and whether that is all."""
    rule = _RULES.get((request.api_key, request.api_version))
    data = request.frame.data[8:]
    if rule is None or not rule.request_limit_bytes:
        return data[: 2 + max(int.from_bytes(data[:2], "big", signed=True), 0)], False
    if rule.walk_request:
        data = _with_stubs(request, data, response=False)
    return data[: rule.request_limit_bytes], len(data) <= rule.request_limit_bytes


def response_data(request: Request) -> tuple[bytes, bool]:
    """What leaves of its response, from behind the correlation id on, and whether that is all."""
    assert request.response is not None
    rule = _RULES.get((request.api_key, request.api_version))
    if rule is None:
        return b"", False
    data = request.response.data[4:]
    if rule.walk_response:
        data = _with_stubs(request, data, response=True)
    return data[: rule.response_limit_bytes], len(data) <= rule.response_limit_bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """What the header of a record batch says."""

    records: int
    codec: int
    transactional: bool
    control: bool
    producer_id: int
    producer_epoch: int


def batches(record_set: bytes) -> Iterator[Batch]:
    """The batches of a record set, all of magic 2 and whole."""
    at = 0
    while at < len(record_set):
        _, size, _, magic, _, attributes, _, _, _, producer_id, epoch, _, records = _BATCH.unpack_from(record_set, at)
        assert magic == 2
        transactional, control = bool(attributes & _TRANSACTIONAL), bool(attributes & _CONTROL)
        yield Batch(records, attributes & _CODEC, transactional, control, producer_id, epoch)
        at += _BATCH_OVERHEAD + size
    assert at == len(record_set)


def _with_stubs(request: Request, data: bytes, *, response: bool) -> bytes:
    cut, at = bytearray(), 0
    for name, value in leaves(read_body(request, response=response)):
        if name == "records" and value:
            start = data.index(value, at)
            cut += data[at:start] + _stub(bytes(value))
            at = start + len(value)
    return bytes(cut) + data[at:]


def _stub(record_set: bytes) -> bytes:
    """struct set_summary of bpf/record.h."""
    found = list(batches(record_set))
    flags = any(batch.transactional for batch in found) | any(batch.control for batch in found) << 1
    counts = sum(batch.records for batch in found), len(found), 2, found[0].codec, _COUNTED, flags
    return struct.pack(">IIBBBBqhxx", *counts, found[0].producer_id, found[0].producer_epoch)
