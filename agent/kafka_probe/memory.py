"""The memory of the agent: what `--memory-limit` is divided into, and the bounds of every table that input can fill.

The limit holds for the cgroup of the agent, with its BPF maps: memory.peak, max_usage_in_bytes in version 1. Fixed
parts come first; what is left is shared out by `_SHARES`. Sizes per item are measured, rounded up, and checked by
tests/unit/test_memory.py. This module never measures while the agent runs: bounds depend on the settings alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from kafka_probe.errors import StartError

if TYPE_CHECKING:
    from kafka_probe.config import Config

MIB = 1 << 20

INTERPRETER_BYTES = 80 * MIB  # Python, the libraries, their code in the page cache, and maps of fixed size
LEAST_TABLES_BYTES = 32 * MIB
IN_TRANSIT_BYTES = 16 * MIB  # events between the tables and the sink, and what is being compressed: of these
IN_HAND_BYTES = 4 * MIB  # are handed on at once, with their JSON, or one event that is larger,
SERVER_WAITING_BYTES = 8 * MIB  # and so many wait for the HTTP server
SERIES_BYTES = 8192  # one label set of each table of the HTTP server, with the text of its metrics
HTTP_BYTES = 16 * MIB  # four lists of 1 MiB under way, 3 MiB while one is sorted, and two pages of metrics still sent
SPOOL_FILES = 1 << 16  # most that wait in a spool directory,
SPOOL_FILE_BYTES = 256  # and what the agent keeps of each
DECODED_BYTES = 24 * MIB  # what frames that are decoded at once become: up to 45 bytes for each of theirs,
DECODED_AT_ONCE = MIB // 2  # so many of which are decoded at once, and one frame more
COMPILER_BYTES = 384 * MIB  # at the start only: LLVM, with its code in the page cache

KERNEL_CONNECTION_BYTES = 1204  # of `conns` and its bucket, an eighth of `unfinished`, a 32nd of `held`
BORROWED_BYTES = 256  # that counts of an interval may take in the place of a connection that there is not
CONNECTION_BYTES = KERNEL_CONNECTION_BYTES + 800

# Shares of what is left for tables, in percent. The rest is for fragmentation.
_SHARES = {
    "connections": 59,
    "counts": 8,
    "learned": 7,
    "shapes": 5,
    "ends": 5,
    "workloads": 3,
    "topic_names": 3,
    "clients": 3,
    "unfinished": 2,
    "exchanges": 2,
    "groups": 1,
}
# Of one item each; the others are counted in bytes.
_ITEM_BYTES = {
    "connections": CONNECTION_BYTES,
    "ends": 1536,  # a closed connection with the sample of its end
    "groups": 512,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most of each that the agent keeps. What does not fit is counted under `other`, and as a loss by its name."""

    connections: int  # open ones, in the kernel and here; what they leave free, those that ended may take
    counts_bytes: int  # counts of frames by connection and shape, of the running interval and of the one being sent
    learned_bytes: int  # what connections say of themselves: ids, software, groups, and their fetch sessions
    shapes_bytes: int  # forms of frames that the decoder knows
    ends: int  # closed connections and resets that are not reported yet, beside the connections
    workloads_bytes: int  # the processes that own connections, as long as somebody holds them
    topic_names_bytes: int
    clients_bytes: int  # that the HTTP server shows, with their topics
    unfinished_bytes: int  # frames of which samples are missing
    exchanges_bytes: int  # requests that wait for their response
    groups: int  # of open connections, by owner and network

    @classmethod
    def within(cls, tables_bytes: int) -> Self:
        """Share out so many bytes."""

        def share(name: str) -> int:
            return tables_bytes * _SHARES[name] // 100 // _ITEM_BYTES.get(name, 1)

        return cls(
            connections=share("connections"),
            counts_bytes=share("counts"),
            learned_bytes=share("learned"),
            shapes_bytes=share("shapes"),
            ends=share("ends"),
            workloads_bytes=share("workloads"),
            topic_names_bytes=share("topic_names"),
            clients_bytes=share("clients"),
            unfinished_bytes=share("unfinished"),
            exchanges_bytes=share("exchanges"),
            groups=share("groups"),
        )


DEFAULT = Bounds.within(328 * MIB)
"""What the default settings leave."""


def bounds_of(config: Config) -> Bounds:
    """Return the bounds that the settings leave.

    Raises:
        StartError: the limit is below what the settings need.
    """
    fixed = {
        "interpreter, libraries and fixed maps": INTERPRETER_BYTES,
        "frames being decoded": DECODED_BYTES,
        "ring (--ring-size-bytes)": config.ring_size_bytes,
        "events that wait (--sink-buffer-bytes)": config.sink_buffer_bytes,
        "events in transit": IN_TRANSIT_BYTES,
        "metrics (--metrics-series)": SERIES_BYTES * config.metrics_series,
        "HTTP answers": HTTP_BYTES,
    }
    if config.spool_dir:
        fixed["names of files that wait (--spool-dir)"] = SPOOL_FILES * SPOOL_FILE_BYTES
    needed = sum(fixed.values()) + LEAST_TABLES_BYTES
    limit = f"--memory-limit {_mib(config.memory_limit)} MiB is too low"
    if config.memory_limit < needed:
        parts = ", ".join(f"{part} {_mib(size)}" for part, size in (*fixed.items(), ("tables", LEAST_TABLES_BYTES)))
        raise StartError(
            f"{limit}: {_mib(needed)} MiB are needed ({parts}). Raise it, or lower the settings named here."
        )
    if config.memory_limit < COMPILER_BYTES:
        raise StartError(
            f"{limit}: compiling the programs takes {_mib(COMPILER_BYTES)} MiB for a moment at the start. Raise it."
        )
    return Bounds.within(config.memory_limit - sum(fixed.values()))


def event_bytes(event: Mapping[str, Any]) -> int:
    """Return about how much memory an event takes, rounded up, without its texts, which others keep, too."""
    counts = sum(len(event.get(name) or ()) for name in ("errors", "latency", "latency_empty"))
    return 2048 + 1280 * len(event.get("topics") or ()) + 128 * counts


def _mib(size_bytes: int) -> str:
    return f"{-(-size_bytes // MIB)}"
