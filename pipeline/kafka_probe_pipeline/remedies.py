"""Lists what to change so that connections do not end for a cause again.

This module imports nothing, so that commands that read the tables use it without Spark.
"""

from __future__ import annotations

BELOW = 0.8
"""An idle limit may be this share of a silence: far enough below it that a timer that comes late is still in time."""
_LEAST_SILENCE_US = 2_000_000  # no idle limit is shorter
_OF_DEVICE = (
    "Make the clients close or probe idle connections earlier: connections.max.idle.ms of at most {ms}, or TCP "
    "keepalive (net.ipv4.tcp_keepalive_time; with librdkafka also socket.keepalive.enable) of at most {below}. Or "
    "raise the idle timeout of the firewall, NAT gateway or load balancer between clients and brokers above the idle "
    "time of the clients."
)
_OF_BUSY = (
    "Check the firewalls, NAT gateways and load balancers between client and broker: one of them ended a connection "
    "that was not idle, as after a restart, a failover, or with a full table of connections."
)
_DEVICE_CAUSES = ("middlebox_reset", "middlebox_silent_drop")
# In braces: `idle` is the silence, `below` and `ms` are BELOW of it, with its unit and as a number of ms.
REMEDIES = {
    "client_idle_limit": "To keep such connections open, raise connections.max.idle.ms of these clients above {idle}, "
    "and that of the brokers above that of the clients.",
    "broker_idle_limit": "Set connections.max.idle.ms of the clients to at most {ms}, so that they close first and "
    "lose nothing, or raise it on the brokers above the idle time of the clients.",
    **dict.fromkeys(_DEVICE_CAUSES, _OF_DEVICE),
    "rejected_request": "Check that the broker accepts such requests: max.request.size of the client against "
    "message.max.bytes of the broker and max.message.bytes of the topic, and the client's version against those that "
    "the broker supports. The broker's log has the reason.",
    "auth_failure": "Check security.protocol, sasl.mechanism and the credentials of the client. The broker's log has "
    "the reason.",
    "process_exit": "Find out why the process exited: check its log, exit status and memory limit.",
    "broker_shutdown": "Nothing if this was intended; otherwise check the broker's log. Clients continue with other "
    "brokers.",
    "normal": "Nothing: the client ended the connection itself.",
    "unknown": "If the evidence states that no agent watched an end, run one there. `kafka-probe agents` lists agents "
    "that are silent, and what they lost.",
}


def remedy(cause: str, idle_us: int) -> str:
    """Return what to change after a close for this cause. idle_us: the silence before it."""
    if cause in _DEVICE_CAUSES and idle_us < _LEAST_SILENCE_US:
        return _OF_BUSY
    below_s = idle_us / 1e6 * BELOW
    return REMEDIES[cause].format(idle=f"{idle_us / 1e6:.1f} s", below=f"{below_s:.1f} s", ms=round(below_s * 1000))


def remedy_in_general(cause: str) -> str:
    """Return what to change without the silence of a certain connection."""
    below = f"{BELOW:.0%}".replace("%", " %") + " of the silence"
    return REMEDIES[cause].format(idle="the silence", below=below, ms=f"{below} in ms")
