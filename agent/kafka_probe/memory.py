"""The memory budget of the agent: divides `--memory-limit` into bounds for every table that input can fill.

The limit applies to the agent's cgroup, including BPF maps: memory.peak, or max_usage_in_bytes in version 1. Fixed
parts are subtracted first; `_SHARES` divides the rest. Sizes per item are measured and rounded up; the tests
test_*memory.py check them. This module never measures while the agent runs: bounds depend on settings only.
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
IN_TRANSIT_BYTES = 16 * MIB  # events between tables and sink, and data being compressed; includes the next two
IN_HAND_BYTES = 4 * MIB  # most that is handed on at once: events with their JSON, or one event that is larger
SERVER_WAITING_BYTES = 8 * MIB  # events that wait for the HTTP server
SERIES_BYTES = 15360  # one label set in each table of the HTTP server, and its text in four compressed pages of metrics
HTTP_BYTES = 24 * MIB  # requests, lists being sent, what builds a list and a page of metrics, and the kernel's buffers
ARCHIVE_WAITING_BYTES = 4 * MIB  # frames that wait for the archive's topic
TLS_BYTES = 20 * MIB  # TLS connections: buffers of asyncio and OpenSSL
SPOOL_FILES = 1 << 16  # most files in a spool directory
SPOOL_FILE_BYTES = 256  # memory for the name and facts of each
DECODED_BYTES = 24 * MIB  # decoded frames of one portion: up to 45 bytes for each byte of a frame
DECODED_AT_ONCE = MIB // 2  # bytes of frames in one portion, to which one more frame may be added
COMPILER_BYTES = 480 * MIB  # only at startup: LLVM, with its files in the page cache; 451 MiB if nothing was cached

MOST_PRODUCES_BYTES = 8 * MIB  # more would take long to sort when a response has an error
KERNEL_CONNECTION_BYTES = 1204  # an entry of `conns` and its bucket, 1/8 of one of `unfinished`, 1/32 of one of `held`
BORROWED_BYTES = 256  # budget that counts of an interval may borrow from each free slot of a connection
CONNECTION_BYTES = KERNEL_CONNECTION_BYTES + 824

# Shares of the memory for tables, in percent. Sizes per item are rounded up, which leaves some for fragmentation.
_SHARES = {
    "connections": 68,
    "counts": 5,
    "produces": 1,
    "learned": 5,
    "shapes": 2,
    "closes": 3,
    "activity": 3,
    "workloads": 3,
    "topic_names": 2,
    "clients": 2,
    "unfinished": 2,
    "exchanges": 2,
    "open_counts": 1,
    "offsets": 1,
}
# Bytes per item, of tables that are bounded by their number of items; the other bounds are in bytes.
_ITEM_BYTES = {
    "connections": CONNECTION_BYTES,
    "closes": 1536,  # a closed connection and its CLOSE sample
    "open_counts": 512,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the agent's tables. Items that do not fit are counted under `other`, and as a loss with a name."""

    connections: int  # open ones, in the kernel and in the agent; closed ones may use their free slots
    counts_bytes: int  # counts of frames by connection and shape, of the running interval and of the one being sent
    produces_bytes: int  # Produce requests that their brokers may refuse
    learned_bytes: int  # facts that connections carry: ids, software, groups; and their fetch sessions
    activity_bytes: int  # sums of connections' flows, with their topics, until the connection is deleted
    shapes_bytes: int  # shapes of frames that the decoder knows
    closes: int  # closed connections and resets that are not reported yet, beyond free slots of connections
    workloads_bytes: int  # processes that own connections, while anything references them
    topic_names_bytes: int
    clients_bytes: int  # clients that the HTTP server shows, with their topics
    unfinished_bytes: int  # frames of which samples are still missing
    exchanges_bytes: int  # requests that wait for their response
    offsets_bytes: int  # ends of partitions and positions of groups, and exchanges that contain them
    open_counts: int  # counts of open connections, by owner and network

    @classmethod
    def within(cls, tables_bytes: int) -> Self:
        """Divide this many bytes among the tables by `_SHARES`."""

        def share(name: str) -> int:
            return tables_bytes * _SHARES[name] // 100 // _ITEM_BYTES.get(name, 1)

        produces_bytes = min(share("produces"), MOST_PRODUCES_BYTES)
        return cls(
            connections=share("connections"),
            counts_bytes=share("counts") + share("produces") - produces_bytes,
            produces_bytes=produces_bytes,
            learned_bytes=share("learned"),
            activity_bytes=share("activity"),
            shapes_bytes=share("shapes"),
            closes=share("closes"),
            workloads_bytes=share("workloads"),
            topic_names_bytes=share("topic_names"),
            clients_bytes=share("clients"),
            unfinished_bytes=share("unfinished"),
            exchanges_bytes=share("exchanges"),
            offsets_bytes=share("offsets"),
            open_counts=share("open_counts"),
        )


DEFAULT = Bounds.within(289 * MIB)
"""The bounds under default settings."""


def bounds_of(config: Config, *, archives: bool = True) -> Bounds:
    """Return the bounds for the settings: the memory limit less all fixed parts, in whole MiB.

    archives: the agent archives frames if the settings ask for it.

    Raises:
        StartError: the settings need more memory than the limit.
    """
    fixed = {
        "interpreter, libraries and fixed maps": INTERPRETER_BYTES,
        "frames being decoded": DECODED_BYTES,
        "ring (--ring-size-bytes)": config.ring_size_bytes,
        "waiting events (--sink-buffer-bytes)": config.sink_buffer_bytes,
        "events in transit": IN_TRANSIT_BYTES,
        "metrics (--metrics-series)": SERIES_BYTES * config.metrics_series,
        "HTTP responses": HTTP_BYTES,
    }
    if archives and config.archives:
        fixed["recorder (--recorder-bytes) and waiting frames"] = config.recorder_bytes + ARCHIVE_WAITING_BYTES
    if config.listen_certfile:
        fixed["TLS connections (--listen-certfile)"] = TLS_BYTES
    if config.spool_dir:
        fixed["names of spool files (--spool-dir)"] = SPOOL_FILES * SPOOL_FILE_BYTES
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
    return Bounds.within((config.memory_limit - sum(fixed.values())) // MIB * MIB)


def event_bytes(event: Mapping[str, Any]) -> int:
    """Return the approximate memory of an event, rounded up, without its texts, which other objects share."""
    counts = sum(len(event.get(name) or ()) for name in ("errors", "latency", "latency_empty"))
    offsets = sum(len(event.get(name) or ()) for name in ("partition_ends", "group_positions"))
    return 2048 + 1280 * len(event.get("topics") or ()) + 128 * counts + 640 * offsets


def _mib(size_bytes: int) -> str:
    return f"{-(-size_bytes // MIB)}"
