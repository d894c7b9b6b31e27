"""Makes the events `open`, `close` and `reset`. A close is built here and nowhere else."""

from __future__ import annotations

from kafka_probe.capture.sample import Sample
from kafka_probe.connections.close_reason import closing_ns, read_close
from kafka_probe.connections.connection import Connection
from kafka_probe.connections.identity import read_open
from kafka_probe.connections.pending_closes import PendingClose
from kafka_probe.events import CloseEvent, Nat, OpenEvent, RepeatedFacts, ResetEvent, WallClock


def open_event(
    connection: Connection,
    nat: Nat | None,
    clock: WallClock,
    again: RepeatedFacts | None = None,
) -> OpenEvent:
    """Return the event of a connection that the agent sees first, or that was listed and has its first sample.

    again: the facts of a repeated event; None: it is the first one.
    """
    return {
        "kind": "open",
        **connection.facts(),
        "found": connection.found,
        "handshake_us": connection.identity.handshake_us,
        "cookie": connection.identity.cookie,
        "keepalive_s": connection.keepalive_s,
        "nat": nat,
        **(again or {}),
        "ts": clock.epoch_us(connection.opened_ns),
    }


def close_event(closed: PendingClose, clock: WallClock) -> CloseEvent:
    """Return the event of a close that is settled."""
    connection, sample = closed.connection, closed.sample
    return {
        "kind": "close",
        **connection.facts(),
        "found": connection.found,
        **read_close(sample, tls=connection.opaque == "tls"),
        **connection.activity_facts(),
        "age_us": (closed.ended_ns - connection.opened_ns) // 1000,
        "auth_error": connection.auth_error,
        "closing_ts": clock.epoch_us(closing_ns(sample)),
        "owner_ended": closed.owner_ended,
        "recorded_frames": closed.recorded_frames,
        "evicted": closed.evicted,
        "listener_closed_us": closed.listener_closed_us,
        "ts": clock.epoch_us(closed.ended_ns),
    }


def reset_event(sample: Sample, clock: WallClock) -> ResetEvent:
    """Return the event of a RESET sample."""
    identity, _ = read_open(sample)
    return {
        "kind": "reset",
        "local": identity.local,
        "peer": identity.peer,
        "netns": identity.netns,
        "direction": "sent",
        "ts": clock.epoch_us(int(sample["ts_ns"])),
    }
