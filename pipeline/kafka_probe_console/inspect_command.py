"""The command `kafka-probe inspect`: finds archived frames, and shows connections as conversations."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any

import click

from kafka_probe.conversations.capture_flags import capture_flags, capture_output, capture_size
from kafka_probe.conversations.terminal import LINE_LIMIT, Terminal
from kafka_probe.errors import KafkaProbeError, UsageError
from kafka_probe.text import as_json, printable
from kafka_probe_console.answer_command import tables_at, tables_flags
from kafka_probe_console.period import period
from kafka_probe_console.printing import write_csv
from kafka_probe_console.waiting import Waiting


@click.command(
    epilog="""\b
Examples:
  kafka-probe inspect --tables kafka-probe-output --since 1h --api Fetch
  kafka-probe inspect --tables kafka-probe-output --client 'billing-*' --error any
  kafka-probe inspect --tables s3://lake/kafka-probe --address 10.57.2.2:39282 --conversation
"""
)
@tables_flags
@click.option("--since", metavar="AGE", help="only frames since then, such as 15m, 2h or 7d")
@click.option("--from", "begin", metavar="TIME", help="only frames from then on: an age, a time of day or ISO 8601")
@click.option("--until", "end", metavar="TIME", help="only frames before then: an age, a time of day or ISO 8601")
@click.option("--address", metavar="HOST[:PORT]", help="address of either end, on either side of NAT")
@click.option("--flow", "flow_id", metavar="ID", help="flow_id of a connection")
@click.option("--client", metavar="PATTERN", help="client id, with * and ? as in shells")
@click.option("--workload", metavar="PATTERN", help="command, container, systemd unit, pod or pod's owner")
@click.option("--node", metavar="NAME", help="node whose agent saw the frames")
@click.option("--side", type=click.Choice(["client", "server"]), help="end at which the frames were seen")
@click.option("--api", metavar="NAME", help="API, such as Produce")
@click.option("--topic", metavar="NAME", help="topic, or topic id, that the frame names")
@click.option("--group", metavar="NAME", help="consumer group that the frame names")
@click.option("--error", metavar="NAME", help="error that the frame has by Kafka's name, or any")
@click.option("--slower", "slower_ms", type=float, metavar="MS", help="responses that took at least so long")
@click.option("--correlation-id", type=int, metavar="N", help="correlation id")
@click.option("--cause", metavar="CAUSE", help="cause of the close, such as middlebox_reset")
@click.option(
    "--conversation", is_flag=True, help="show connections as people read them: requests with their responses"
)
@capture_flags
@click.option(
    "--end",
    "capture_end",
    type=click.Choice(["client", "server", "both"]),
    help="end that --pcapng writes of a connection archived at both [default: that of --side, else client]",
)
@click.option("--count", is_flag=True, help="print only the number of frames")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="most frames or connections")
@click.option("--sort", type=click.Choice(["time", "latency", "bytes"]), default="time", show_default=True)
@click.option("--json", "as_lines", is_flag=True, help="print one JSON object per frame")
@click.option("--csv", "as_csv", is_flag=True, help="print comma-separated values")
@click.option("-v", "--verbose", is_flag=True, help="show more items of each list")
def inspect(
    location: str | None,
    since: str | None,
    begin: str | None,
    end: str | None,
    slower_ms: float | None,
    limit: int,
    pcapng: str | None,
    pcapng_bytes: int | None,
    capture_end: str | None,
    *,
    conversation: bool,
    count: bool,
    as_lines: bool,
    as_csv: bool,
    verbose: bool,
    **conditions: Any,
) -> None:
    """Find archived frames in the pipeline's tables, and print what they contain."""
    most_bytes = capture_size(pcapng, pcapng_bytes)
    if pcapng is None and capture_end is not None:
        raise UsageError("--end has no effect without --pcapng.")
    if sum((conversation, pcapng is not None, count, as_lines, as_csv)) > 1:
        raise UsageError("Use one of --conversation, --pcapng, --count, --json and --csv.")
    try:
        from kafka_probe.conversations.conversation import COLUMNS
        from kafka_probe_console import archived_ends, archived_frames, export, rendering
        from kafka_probe_console.frame_conditions import FrameConditions
    except ImportError as error:
        raise UsageError(f"This command needs {error.name}: pip install '.[console]' in kafka-probe's clone.") from None
    slower_us = None if slower_ms is None else round(slower_ms * 1000)
    asked = FrameConditions(period(since, begin, end, datetime.now(UTC)), slower_us=slower_us, **conditions)
    with tables_at(location) as tables, _capture(pcapng) as capture, Waiting() as waiting:
        tables.require("frames")
        found = archived_ends.ends(tables, asked)
        if count:
            number = archived_frames.count(tables, asked, found)
            waiting.end()
            click.echo(number)
        elif conversation or capture:
            connections, more = archived_frames.connections_with_frames(tables, asked, found, limit)
            if capture:
                side = capture_end or asked.side or "client"
                summary = export.write(tables, connections, capture, side, most_bytes)
                waiting.end()
                click.echo(summary, err=True)
            else:
                sides = (asked.side,) if asked.side else archived_frames.SIDES
                ends = (end for by_side in connections for side in sides for end in by_side.get(side, ()))
                _print(waiting.until_first(rendering.of_connections(tables, ends, verbose=verbose)))
            if more:
                click.echo("More connections match: raise --limit, or give a shorter time.", err=True)
        else:
            frames = archived_frames.frames(tables, asked, found, limit)
            if as_lines:
                for row in waiting.until_first(rendering.rows(tables, frames)):
                    click.echo(as_json(row).decode())
            elif as_csv:
                rows = (tuple(row.values()) for row in rendering.rows(tables, frames))
                write_csv(COLUMNS, waiting.until_first(rows), sys.stdout)
            else:
                _print(waiting.until_first(rendering.lines(tables, frames, verbose=verbose)))


@contextmanager
def _capture(name: str | None) -> Iterator[IO[bytes] | None]:
    """Open the file of --pcapng, if one is named, and report if it cannot be written."""
    if name is None:
        yield None
        return
    try:
        with capture_output(name) as file:
            yield file
            file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise KafkaProbeError(f"The capture file cannot be written: {error.strerror}.") from None


def _print(texts: Iterable[str]) -> None:
    terminal = Terminal()
    for text in texts:
        click.echo(terminal.fitted(printable(text, LINE_LIMIT)))
