"""The layout of the kernel's samples as NumPy types. A test compares it with bpf/sample.h field by field."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

DATA_BYTES = 208
COMMAND_LINE_BYTES = 92
NO_API = 255
BURST_NS = 50_000_000
ALERTS_BYTES = 128  # two alert records, the longest of TLS 1.2 with padding to a block

SAMPLE = np.dtype(
    [
        ("ts_ns", "<u8"),
        ("conn", "<u8"),
        ("tcp_seq", "<u4"),
        ("frame_bytes", "<u4"),
        ("correlation_id", "<i4"),
        ("latency_us", "<u4"),
        ("api_key", "u1"),
        ("api_version", "u1"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("size", "<u2"),
        ("part", "<u2"),
        ("data", "u1", (DATA_BYTES,)),
    ]
)

DATA_AT = SAMPLE.itemsize - DATA_BYTES  # the data is the last field

# A sample in a perf buffer: PERF_RECORD_SAMPLE with its time (CLOCK_MONOTONIC, ns) and the sample as padded raw data.
PERF_SAMPLE = np.dtype(
    [
        ("type", "<u4"),
        ("misc", "<u2"),
        ("size", "<u2"),
        ("time", "<u8"),
        ("raw_size", "<u4"),
        ("sample", SAMPLE),
        ("pad", "<u4"),
    ]
)

# A slot of the ring buffer: its header (length with busy and discard bits, page offset) and the sample.
SLOT = np.dtype([("length", "<u4"), ("page", "<u4"), ("sample", SAMPLE)])

OPEN_DATA = np.dtype(
    [
        ("start_ns", "<u8"),
        ("cgroup_id", "<u8"),
        ("cgroup_v1_id", "<u8"),
        ("cookie", "<u8"),
        ("tgid", "<u4"),
        ("uid", "<u4"),
        ("netns", "<u4"),
        ("rx_base", "<u4"),
        ("tx_base", "<u4"),
        ("handshake_us", "<u4"),
        ("local_port", "<u2"),
        ("peer_port", "<u2"),
        ("family", "<u2"),
        ("server_side", "u1"),
        ("from_start", "u1"),
        ("command_line_size", "<u2"),
        ("keepalive_s", "<u2"),
        ("local_address", "u1", (16,)),
        ("peer_address", "u1", (16,)),
        ("comm", "S16"),
        ("command_line", "u1", (COMMAND_LINE_BYTES,)),
    ]
)

# The beginning of struct conn in bpf/maps.h.
CONNECTION_HEAD = np.dtype(
    [
        ("conn", "<u8"),
        ("longest_silence_ns", "<u8"),
        ("sent_ns", "<u8"),
        ("received_ns", "<u8"),
    ]
)

CLOSE_DATA = np.dtype(
    [
        ("closing_ns", "<u8"),
        ("sent_ns", "<u8"),
        ("received_ns", "<u8"),
        ("silence_ns", "<u8"),
        ("burst_ns", "<u8"),
        ("pause_ns", "<u8"),
        ("sent_bytes", "<u8"),
        ("received_bytes", "<u8"),
        ("unacked_bytes", "<u4"),
        ("retransmits", "<u4"),
        ("srtt_us", "<u4"),
        ("in_flight", "<u4"),
        ("error", "<u4"),
        ("user_timeout_ms", "<u4"),
        ("burst_bytes", "<u4"),
        ("last_request_bytes", "<u4"),
        ("first_state", "u1"),
        ("last_api_key", "u1"),
        ("last_api_version", "u1"),
        ("no_response", "u1"),
        ("retransmits_unanswered", "u1"),
        ("keepalive", "u1"),
        ("owner_exiting", "u1"),
        ("burst_direction", "u1"),
        ("burst_response", "u1"),
        ("pad", "u1", (7,)),
    ]
)


Samples = npt.NDArray[Any]
"""Any number of samples: an array of SAMPLE."""
Sample = npt.NDArray[Any]
"""One element of such an array."""


def blocks(records: npt.NDArray[Any]) -> npt.NDArray[np.void]:
    """Return a view of records without their fields: NumPy copies field by field, which takes five times as long."""
    return records.view(f"V{records.itemsize}")


def sample_of(packed: bytes) -> Sample:
    """Return the sample that the bytes contain. As bytes it takes two thirds of the memory of an array."""
    sample: Sample = np.frombuffer(packed, SAMPLE)[0]
    return sample


def unpack(sample: Sample, layout: np.dtype[Any]) -> dict[str, Any]:
    """Return the fields of a sample's data as Python values: single NumPy values are slow."""
    return dict(zip(layout.names or (), np.frombuffer(sample["data"].tobytes(), layout, 1).item(), strict=True))


class SampleKind(IntEnum):
    """Kinds of samples: enum sample_kind of bpf/sample.h."""

    FRAME = 1
    OPEN = 2
    OWNER = 3
    CLOSE = 4
    REJECT = 5
    GONE = 6
    RESET = 7
    LISTEN = 8


class Flag(IntFlag):
    """Flags of FRAME samples: enum sample_flag of bpf/sample.h. CLOSED belongs to LISTEN samples."""

    RESPONSE = 1
    MORE = 2
    CUT = 4
    CLOSED = 8
    RESYNC = 16


class Protocol(IntEnum):
    """Reasons for rejecting a connection, in `api_key` of its REJECT sample (enum protocol)."""

    TLS = 1
    UNKNOWN = 2


# The kernel's counters in the order of enum counter: first work done, then losses, with their meaning for operators.
COUNTERS = ("requests", "responses", "samples", "connections", "rejected")
LOSSES = {
    "ring_full": "samples lost because the buffer was full: raise `--ring-size-bytes`, or give the agent more CPU",
    "map_full": "connections beyond the number that can be tracked at once: narrow `--ports` or `--side`",
    "gap": "stretches of bytes with the start of a frame that no hook saw: their frames are missing",
    "resync": "calls and frames skipped in search of a frame's start: expected on connections older than the agent",
    "header_incomplete": "connections that ended inside a frame's header: a client or broker died",
    "buffer_unreadable": "frames of which a part to copy could not be read from the process's memory: see Limits",
    "limit_reached": "frames cut or skipped: too many in one call, too many partitions, or too many unfinished frames",
    "unknown_version": "frames of an API version newer than this release, counted by their header only: update",
    "malformed": "frames whose lengths contradict each other: not Kafka, or a bug; report it if it persists",
    "response_unmatched": "responses whose request was not seen or is in doubt, as after the start or limit_reached",
    "request_unanswered": "requests without a response while a later one got one: expected after the start; see gap",
    "in_flight_forgotten": "requests in flight beyond the kernel's bound; their responses count as unmatched",
    "before_proof": "possible frames of connections not yet, or never, proven to be Kafka's: see Limits",
    "record_count": "record batches with more records than their bytes can contain: their bytes are uncounted_bytes",
    "peer_limited": "samples of one client address or process beyond its share of the buffer: see Limits",
    "urgent_data": "connections with TCP urgent data, which Kafka never sends: bytes after it are not decoded",
}
