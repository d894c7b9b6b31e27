"""How a connection ended, from the facts that the kernel has when it destroys the socket."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.record import CLOSE_DATA
from kafka_probe.protocol.schemas import apis

Record = npt.NDArray[Any]

# include/net/tcp_states.h
_FIN_WAIT1, _CLOSE, _CLOSE_WAIT = 4, 7, 8


def _how(first_state: int, error: int) -> tuple[str, str]:
    """(closed_by, how): the state that ESTABLISHED changed to says who began, the socket's error what came of it."""
    if error == errno.ETIMEDOUT:
        return "local", "timeout"
    # What tcp_reset() sets; EPIPE once the peer had closed its half.
    reset = error in (errno.ECONNRESET, errno.EPIPE)
    if first_state == _CLOSE:
        # Without the error the socket was closed with unread data or on purpose, by sending a reset.
        return ("peer", "rst_received") if reset else ("local", "rst_sent")
    if first_state in (_FIN_WAIT1, _CLOSE_WAIT):
        return "local" if first_state == _FIN_WAIT1 else "peer", "rst_received" if reset else "fin"
    return "unknown", "unknown"


def read_close(record: Record) -> dict[str, object]:
    """The fields of the `close` event that the kernel knows."""
    data = np.frombuffer(record["data"].tobytes(), CLOSE_DATA, 1)[0]
    closed_by, how = _how(int(data["first_state"]), int(data["error"]))
    api = apis().get(int(data["last_api_key"]))
    return {
        "closed_by": closed_by,
        "how": how,
        "idle_us": int(data["idle_ns"]) // 1000,
        "last_api": api.name if api else None,
        "in_flight": int(data["in_flight"]),
        "sent_bytes": int(data["sent_bytes"]),
        "received_bytes": int(data["received_bytes"]),
        "unacked_bytes": int(data["unacked_bytes"]),
        "retransmits": int(data["retransmits"]),
        "srtt_us": int(data["srtt_us"]),
    }
