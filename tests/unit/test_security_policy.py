"""The numbers of SECURITY.md are those of the constants that enforce them. The pipeline's are in tests/pipeline."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_probe import flow_events, loop, text
from kafka_probe.archive import recorder
from kafka_probe.capture import compiler, perfbuf
from kafka_probe.config import Config
from kafka_probe.connections import activity, conntrack, exchange, offsets, open_counts, pending_closes, tracker
from kafka_probe.memory import (
    ARCHIVE_WAITING_BYTES,
    BORROWED_BYTES,
    COMPILER_BYTES,
    CONNECTION_BYTES,
    DECODED_AT_ONCE,
    DECODED_BYTES,
    DEFAULT,
    HTTP_BYTES,
    IN_HAND_BYTES,
    IN_TRANSIT_BYTES,
    INTERPRETER_BYTES,
    KERNEL_CONNECTION_BYTES,
    MIB,
    SERIES_BYTES,
    SERVER_WAITING_BYTES,
    SPOOL_FILE_BYTES,
    SPOOL_FILES,
    TLS_BYTES,
    bounds_of,
)
from kafka_probe.protocol import facts
from kafka_probe.server import exposition, http_connection, label_tables, limits, query, server, traffic
from kafka_probe.server.http_connection import REQUEST_TIMEOUT_S
from kafka_probe.sinks import spool
from kafka_probe.sinks.batch import EVENT_BYTES
from kafka_probe.time_limit import ReportPart
from kafka_probe.workloads import cgroup, container_names, log_dirs, process, workload
from tests.builders.policy import policy_texts, unexplained
from tests.programs.attack import judge

ROOT = Path(__file__).parents[2]
POLICY, _ = policy_texts()
WORDS: dict[float, str] = {1: "a", 2: "two", 3: "three", 4: "four"}
WORDS |= {0.1: "a tenth", 0.2: "a fifth", 0.25: "a quarter", 0.5: "half", 0.75: "three quarters"}
CONFIG = Config(node="node-1")


def defined(name: str) -> int:
    """Return a number that a header of bpf/ defines."""
    headers = "".join(path.read_text() for path in sorted((ROOT / "bpf").glob("*.h")))
    (number,) = re.findall(rf"^#define {name} (\d+)\b", headers, re.MULTILINE)
    return int(number)


def in_words(number: float) -> str:
    return WORDS.get(number, f"{number:g}")


def mib(size_bytes: int) -> int:
    """Return a size in MiB, rounded up."""
    return -(-size_bytes // MIB)


METRICS_BYTES = SERIES_BYTES * CONFIG.metrics_series
FIXED_BYTES = (
    *(INTERPRETER_BYTES, DECODED_BYTES, HTTP_BYTES, IN_TRANSIT_BYTES, METRICS_BYTES),
    *(CONFIG.ring_size_bytes, CONFIG.sink_buffer_bytes),
    *(CONFIG.recorder_bytes, ARCHIVE_WAITING_BYTES),
)
FIXED_MIB = mib(sum(FIXED_BYTES))
FRAMES_OF_A_CALL = compiler.HOP_RUNS * compiler.HOPS  # some hops are over a segment of the buffer instead
TOPIC_BYTES = activity._TOPIC_BYTES + facts.text_bytes("x" * 249)
LARGEST_SUMS_BYTES = activity.ACTIVITY_BYTES + activity.MOST_TOPICS * TOPIC_BYTES

IN_THE_KERNEL = (
    f"at most one sample, with {defined('DATA_BYTES')} bytes of the first request",
    f"more than {FRAMES_OF_A_CALL // 10_000 * 10_000:,} frames in one call",
    f"until {in_words(defined('EXCHANGES_TO_FIND'))} exchanges have confirmed where frames begin",
    f"(those of 0 to {defined('MAX_VERSIONS') - 1} modulo 65,536)",
    f"the first {defined('COMMAND_LINE_BYTES')} bytes of a command line",
    f"accept {defined('PEER_RATE'):,} samples per second from a peer. {defined('MAX_PEERS'):,} buckets",
)
MEMORY = (
    f"`--memory-limit` ({mib(CONFIG.memory_limit)} MiB)",
    f"The limit must be at least {mib(COMPILER_BYTES)} MiB",
    f"{FIXED_MIB} MiB of the default are fixed: interpreter and libraries {mib(INTERPRETER_BYTES)}",
    f"frames being decoded {mib(DECODED_BYTES)}, HTTP responses {mib(HTTP_BYTES)}, ring {mib(CONFIG.ring_size_bytes)}",
    f"events that wait {mib(CONFIG.sink_buffer_bytes)} (one has at most {mib(EVENT_BYTES)}, `sink_event_too_large`)",
    f"{mib(IN_TRANSIT_BYTES)} in transit, metrics {mib(METRICS_BYTES)}, the recorder {mib(CONFIG.recorder_bytes)}",
    f"with {mib(ARCHIVE_WAITING_BYTES)} of frames that wait for the archive",
    f"The recorder keeps at most {recorder._KEPT_PARTS} samples of a frame",
    f"at least {perfbuf._LEAST_BYTES // 1024} KiB per CPU",
    f"names of up to {SPOOL_FILES:,} files take {mib(SPOOL_FILES * SPOOL_FILE_BYTES)} MiB more",
    f"Tables share the rest, {mib(CONFIG.memory_limit) - FIXED_MIB} MiB",
    f"- {DEFAULT.connections:,} connections (before kernel 6.1 at most {compiler.MOST_CONNECTIONS_BEFOREHAND:,})",
    f"of {KERNEL_CONNECTION_BYTES / 1024:.1f} KiB in the kernel",
    f"{(CONNECTION_BYTES - KERNEL_CONNECTION_BYTES) / 1024:.1f} KiB in the agent",
    f"plus {DEFAULT.closes:,} slots",
    f"their fetch sessions take {mib(DEFAULT.learned_bytes)} MiB",
    f"Sums of connections for their `close` take {mib(DEFAULT.activity_bytes)} MiB",
    f"one with {activity.MOST_TOPICS} topics, the most that it names, up to {LARGEST_SUMS_BYTES // 1024} KiB",
    f"Counts of {in_words(loop._REPORTS)} intervals (of {in_words(loop._REPORTS + 1)}",
    f"if they are shorter than {loop._LEAST_REPORT_S:g} s)",
    f"The newest Produce requests, whose brokers may refuse them, {mib(DEFAULT.produces_bytes)} MiB",
    f"{mib(DEFAULT.counts_bytes)} MiB, and {mib(DEFAULT.connections * BORROWED_BYTES)} MiB per interval more",
    f"A flow names {flow_events.TOPICS:,} topics, with {flow_events.CHARACTERS:,} characters in all",
    f"Names of topic ids {mib(DEFAULT.topic_names_bytes)} MiB. Shapes of frames {mib(DEFAULT.shapes_bytes)} MiB",
    f"unfinished frames {mib(DEFAULT.unfinished_bytes)} MiB",
    f"requests that wait for their response {mib(DEFAULT.exchanges_bytes)} MiB",
    f"Ends of partitions and positions of groups {mib(DEFAULT.offsets_bytes)} MiB",
    f"{offsets.MOST_ROWS:,} that are sent in an interval",
    f"Processes that own connections {mib(DEFAULT.workloads_bytes)} MiB",
    f"- {DEFAULT.open_counts:,} counts of open connections",
    f"at most {2 * open_counts.MAX_COUNTS} and {open_counts.MAX_BYTES >> 10} KiB of JSON",
    f"Clients in the API {mib(DEFAULT.clients_bytes)} MiB",
    f"{mib(SERVER_WAITING_BYTES)} MiB of events between the agent and its HTTP server",
    f"- {cgroup.MOST_CGROUPS:,} cgroups of each hierarchy",
    f"paths of up to {cgroup.MOST_PATH_BYTES} bytes",
    f"looks at {process._MOST_OPEN_FILES:,} open files, to find {log_dirs._MOST_LOG_DIRS} log directories",
    f"at {log_dirs._MOST_ENTRIES:,} names in each of these. It remembers {log_dirs._MOST_NAMED:,} names",
    f"listeners of {pending_closes._LISTENERS} ports, counted for each process",
    f"at {pending_closes._ADDRESSES} addresses each",
    f"Texts have {facts.TEXT_CHARACTERS} bytes, or {facts.TEXT_CHARACTERS // 4} characters",
    f"have {workload.TEXT_CHARACTERS:,} characters, or {workload.TEXT_CHARACTERS // 4} beyond Latin-1",
    f"{in_words(DECODED_AT_ONCE / MIB).capitalize()} of a MiB of frames is decoded at once",
    f"The same holds for the {exchange.MOST_MEMBERSHIP:,} requests in an interval that may change the members of a",
    f"an eighth of the {exchange.MOST_ADMINISTRATION:,} topics and partitions in events of requests that change a",
    f"An event counts as {exchange.EVENT_ENTRIES} more, and as {exchange.MOST_REQUEST_ENTRIES} at most",
    f"A report is sent in parts of {mib(IN_HAND_BYTES)} MiB",
    f"A report takes an interval, or {loop._LEAST_REPORT_S:g} s if that is longer",
    f"seconds for {conntrack.ASKED_AT_ONCE:,} queries",
    f"Flows beyond {in_words(ReportPart.FLOWS.value)} of this time",
    f"Resets beyond {in_words(ReportPart.RESETS.value)} of it, opens beyond {in_words(ReportPart.OPENS.value)}",
    f"at least {tracker.LEAST_CLOSES:,} closes by each",
    f"Up to {DEFAULT.closes * tracker._RESETS_PER_SLOT // 2:,} resets",
)
FILES = (
    f"It reads files of up to {mib(container_names._MOST_BYTES)} MiB",
    f"of at most {mib(spool.MAX_BATCH_BYTES)} MiB packed and {mib(spool.MAX_BATCH_BYTES)} MiB unpacked",
    f"at most {spool.MAX_EVENTS:,} and is checked against the contents",
)
HTTP_SERVER = (
    f"CPU: {in_words(limits.HTTP_CPU_SHARE)} of a core for the thread that handles connections",
    f"{in_words(limits.DATA_CPU_SHARE)} for the thread that builds pages, after {in_words(limits.CPU_BURST_S)} second",
    f"{limits.REQUESTS_PER_S} per second, {limits.REQUESTS_AT_ONCE} at once",
    f"{query.FILTERS} values per request",
    f"once {in_words(exposition.FRESH_S)} second at most",
    f"each of the four steps of a response by {in_words(limits._PAUSE_S)} second",
    f"of more than {http_connection.MOST} connections the oldest is closed: of the address (with IPv6, the network) ",
    f"{http_connection.MOST} connections, {limits.LISTS_AT_ONCE} lists at a time of {mib(query.PAGE_BYTES)} MiB each",
    f"{query.SORTED:,} rows of a list that is being sorted",
    f"A response of more than 4 KiB is sent in parts of {exposition.PART_BYTES >> 10} KiB",
    f"the kernel keeps up to {(2 * server.BUFFER_BYTES >> 10) + 64} KiB of it for a client that does not read",
    f"the client has taken nothing for {http_connection.UNREAD_S:g} s",
    f"With `--listen-certfile` the connections take {mib(TLS_BYTES)} MiB more",
    f"one request of at most {http_connection.REQUEST_BYTES >> 10} KiB and {http_connection.REQUEST_LINES} lines",
    f"label sets of a table have {label_tables.LABEL_BYTES} bytes on average, and each has up to {traffic.ERRORS}",
    f"after {REQUEST_TIMEOUT_S:g} s without a whole request, and after {2 * REQUEST_TIMEOUT_S:g} s",
)
NAMES = (
    f"A name has at most {text.NAME_LIMIT} characters there, and a log message at most {text.MESSAGE_LIMIT:,}",
    f"marks on one character beyond {in_words(text._MARKS_IN_A_ROW)}",
)
ATTACK = (f"less than {judge.LEAST_PERCENT:g} % of the honest clients' requests",)
PINNED = (*IN_THE_KERNEL, *MEMORY, *FILES, *HTTP_SERVER, *NAMES, *ATTACK)

# Numbers that no constant has: sizes that follow from those of objects, ...
MEASURED = (
    "takes up to 451 MiB for a moment",
    "takes 0.4 KiB for each",
    "takes some 200 bytes, a consumer of one topic 1.5 KiB",
    "a connection with one topic some 850 bytes",
    "some 2,700 with command lines of 500 characters",
    "some 850 of eight topics",
    "some 5,000 partitions",
    ", in 1 MiB.",
    "an RSA key of 4,096 bits some 40 per second",
)
# ... and numbers that are no bounds.
NO_BOUNDS = (
    "mode 0700",
    "a 32-bit program",
    "Before Linux 5.19",
    f"`{CONFIG.listen}`",
    "in version 1)",
    "IPv4 address or an IPv6 /64",
    "Latin-1",
    "then 429",
    "then 400",
    "The response is 421",
    r"`\x1b`",
)


def test_the_bounds_under_default_settings_are_those_of_the_policy() -> None:
    assert bounds_of(CONFIG) == DEFAULT


@pytest.mark.parametrize("sentence", PINNED)
def test_the_policy_has_the_number_that_the_code_enforces(sentence: str) -> None:
    assert sentence in POLICY


def test_no_other_number_is_in_the_policy() -> None:
    assert unexplained(POLICY, (*PINNED, *MEASURED, *NO_BOUNDS)) == []
