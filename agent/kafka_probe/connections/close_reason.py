"""Derives from the kernel's CLOSE samples which end closed first, and how. The pipeline names the cause."""

from __future__ import annotations

import errno

from kafka_probe.capture.sample import ALERTS_BYTES, BURST_NS, CLOSE_DATA, Sample, unpack
from kafka_probe.events import CloseFacts
from kafka_probe.protocol.schemas import apis

JUST_NS = 1_000_000_000
"""An event within this time of another, in ns, counts as its consequence."""
_FIN_WAIT1, _CLOSE, _CLOSE_WAIT = 4, 7, 8  # include/net/tcp_states.h
_RECEIVE = 1  # enum direction of bpf/sock.h
# Errors that tcp_write_err() sets: the last ICMP error if there was one, else ETIMEDOUT.
_TIMEOUTS = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


def _how(first_state: int, error: int) -> tuple[str, str]:
    """Return (closed_by, how) from the TCP state that ESTABLISHED changed to and the socket's error.

    The state shows which end began to close, the error shows the result.
    """
    if error in _TIMEOUTS:
        return "local", "timeout"
    # Errors that tcp_reset() sets: EPIPE after the peer's FIN, else ECONNRESET.
    reset = error in (errno.ECONNRESET, errno.EPIPE)
    if first_state == _CLOSE:
        # Without the error this end sent the reset: it closed with unread data, or aborted on purpose.
        return ("peer", "rst_received") if reset else ("local", "rst_sent")
    if first_state == _FIN_WAIT1:
        return "local", "rst_received" if reset else "fin"
    # A peer may answer data with a reset after its own FIN. The FIN came first and counts.
    return ("peer", "fin") if first_state == _CLOSE_WAIT else ("unknown", "unknown")


def closing_ns(sample: Sample) -> int:
    """Return the time at which this end began to close, ns of CLOCK_MONOTONIC."""
    return int(unpack(sample, CLOSE_DATA)["closing_ns"] or sample["ts_ns"])


def read_close(sample: Sample, *, tls: bool = False, at_once_ns: int = BURST_NS) -> CloseFacts:
    """Return the fields of `close` that the kernel reports.

    tls: the connection uses TLS, so a last burst no longer than alerts is taken for close_notify (RFC 8446, 6.1).
    at_once_ns: time within which this end closes after it has read the peer's close_notify.
    """
    data = unpack(sample, CLOSE_DATA)
    error = data["error"]
    closed_by, how = _how(data["first_state"], error)
    began_ns = closing_ns(sample)
    sent_us, received_us = (_since(data[name], began_ns) for name in ("sent_ns", "received_ns"))
    idle_us = min((us for us in (sent_us, received_us) if us is not None), default=None)
    unacked_bytes, unanswered = data["unacked_bytes"], data["retransmits_unanswered"]
    # To the peer, unacknowledged payload is silence, unless it was sent just now and is on its way.
    in_vain = unacked_bytes and (unanswered or error)
    silence_us = data["silence_ns"] // 1000 if in_vain else idle_us
    peers = data["burst_direction"] == _RECEIVE
    # A close after our own close_notify sends a reset if the peer's close_notify has arrived and was not read.
    orderly = how == "fin" or data["first_state"] == _FIN_WAIT1 or (how == "rst_sent" and not peers)
    brief = data["burst_bytes"] <= ALERTS_BYTES and began_ns - data["burst_ns"] < JUST_NS
    killed = data["owner_exiting"] and data["first_state"] != _CLOSE_WAIT
    if tls and orderly and brief and not data["burst_response"] and not killed:
        # The end that sends close_notify first closes the connection, even if the other FIN comes first; and
        # close_notify does not end an idle time. A peer closes at once after close_notify: if this end closed later,
        # and no FIN had arrived, the peer had sent something else.
        something_else = peers and data["first_state"] == _FIN_WAIT1 and (received_us or 0) > at_once_ns // 1000
        closed_by, how = ("peer", "fin") if peers and not something_else else ("local", how)
        idle_us = silence_us = received_us if something_else else data["pause_ns"] // 1000 or None
    api = apis().get(data["last_api_key"])
    return {
        "closed_by": closed_by,
        "how": how,
        "idle_us": idle_us,
        "silence_us": silence_us,
        "received_idle_us": received_us,
        "last_api": api.name if api else None,
        "last_request_bytes": data["last_request_bytes"] or None,
        "last_acks": 0 if data["no_response"] else None,
        "in_flight": data["in_flight"],
        "sent_bytes": data["sent_bytes"],
        "received_bytes": data["received_bytes"],
        "unacked_bytes": unacked_bytes,
        "retransmits": data["retransmits"],
        "unanswered_retransmits": unanswered,
        "srtt_us": data["srtt_us"],
        "keepalive": bool(data["keepalive"]),
        "user_timeout_ms": data["user_timeout_ms"] or None,
        "owner_exiting": bool(data["owner_exiting"]),
    }


def _since(then_ns: int, now_ns: int) -> int | None:
    """Return the µs from then to now, None if then is 0. Payload after the start of the close gives 0 µs."""
    return max(now_ns - then_ns, 0) // 1000 if then_ns else None
