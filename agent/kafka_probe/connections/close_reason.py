"""How a connection ended, from the facts that the kernel has when it destroys the socket."""

from __future__ import annotations

import errno
from typing import Any

import numpy.typing as npt

from kafka_probe.capture.sample import ALERTS_BYTES, BURST_NS, CLOSE_DATA, unpack
from kafka_probe.protocol.schemas import apis

Sample = npt.NDArray[Any]

_JUST_NS = 1_000_000_000
_FIN_WAIT1, _CLOSE, _CLOSE_WAIT = 4, 7, 8  # include/net/tcp_states.h
_RECEIVE = 1  # enum direction of bpf/sock.h
# What tcp_write_err() sets: the reason that the network gave, if it gave one.
_TIMEOUTS = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


def _how(first_state: int, error: int) -> tuple[str, str]:
    """(closed_by, how): the state that ESTABLISHED changed to says who began, the socket's error what came of it."""
    if error in _TIMEOUTS:
        return "local", "timeout"
    # What tcp_reset() sets; EPIPE once the peer had closed its half.
    reset = error in (errno.ECONNRESET, errno.EPIPE)
    if first_state == _CLOSE:
        # Without the error the socket was closed with unread data or on purpose, by sending a reset.
        return ("peer", "rst_received") if reset else ("local", "rst_sent")
    if first_state == _FIN_WAIT1:
        return "local", "rst_received" if reset else "fin"
    # After its FIN a peer may answer with a reset what it is sent.
    return ("peer", "fin") if first_state == _CLOSE_WAIT else ("unknown", "unknown")


def closing_ns(sample: Sample) -> int:
    """Return when this end began to close, ns of CLOCK_MONOTONIC."""
    return int(unpack(sample, CLOSE_DATA)["closing_ns"] or sample["ts_ns"])


def read_close(sample: Sample, *, tls: bool = False, at_once_ns: int = BURST_NS) -> tuple[int, dict[str, Any]]:
    """When this end began to close, ns of CLOCK_MONOTONIC, and the fields of `close` that the kernel knows.

    tls: what is said just before the end is taken for close_notify alerts (RFC 8446, 6.1) if it is no more than those.
    at_once_ns: within which this end closes once it has read the peer's.
    """
    data = unpack(sample, CLOSE_DATA)
    error = data["error"]
    closed_by, how = _how(data["first_state"], error)
    began_ns = closing_ns(sample)
    sent_us, received_us = (_since(data[name], began_ns) for name in ("sent_ns", "received_ns"))
    idle_us = min((us for us in (sent_us, received_us) if us is not None), default=None)
    unacked_bytes, unanswered = data["unacked_bytes"], data["retransmits_unanswered"]
    # What is not acknowledged was silence for the peer, unless it was sent just now and is on its way.
    in_vain = unacked_bytes and (unanswered or error)
    silence_us = data["silence_ns"] // 1000 if in_vain else idle_us
    peers = data["burst_direction"] == _RECEIVE
    # A close after one's own goodbye sends a reset where the peer's has come, and is not read.
    orderly = how == "fin" or data["first_state"] == _FIN_WAIT1 or (how == "rst_sent" and not peers)
    brief = data["burst_bytes"] <= ALERTS_BYTES and began_ns - data["burst_ns"] < _JUST_NS
    killed = data["owner_exiting"] and data["first_state"] != _CLOSE_WAIT
    if tls and orderly and brief and not data["burst_answers"] and not killed:
        # Who says goodbye first closes, whoever's FIN comes first; and a goodbye does not end a silence. A peer that
        # said it closes at once: if we closed later, and no FIN had come, it had said something else.
        something_else = peers and data["first_state"] == _FIN_WAIT1 and (received_us or 0) > at_once_ns // 1000
        closed_by, how = ("peer", "fin") if peers and not something_else else ("local", how)
        idle_us = silence_us = received_us if something_else else data["pause_ns"] // 1000 or None
    api = apis().get(data["last_api_key"])
    return began_ns, {
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
    """µs; what came after the beginning of the end was not idle at all."""
    return max(now_ns - then_ns, 0) // 1000 if then_ns else None
