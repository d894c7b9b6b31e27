"""Evidence: what each end of a connection reported about its close, as the facts that rules use.

Each end reports whether it closed first. Times of two hosts are never compared to decide that; the lengths of the two
silences are. This module never names a cause and never touches Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from kafka_probe_pipeline.config import PipelineConfig

Side = Literal["client", "server"]

SECOND_US = 1_000_000
END_FIELDS = ("close", "last_seen_us", "opaque", "workload")
"""Columns of `connections.END` that rules use."""


class Limits(NamedTuple):
    """The settings that rules use: seconds, and `same_age_percent`. Executors lack what `PipelineConfig` imports."""

    agent_silent: float
    authentication_within: float
    clock_margin: float
    close_notify_within: float
    closed_limit: float
    closed_together: float
    idle_minimum: float
    other_end_wait: float
    right_after: float
    same_age_percent: float
    shutdown_within: float

    @classmethod
    def of(cls, config: PipelineConfig) -> Self:
        """Return the limits of a configuration."""
        return cls(*(getattr(config, name) for name in cls._fields))


class AgentProgress(NamedTuple):
    """The last report of an agent: since and up to when its reports are complete, by its own clock.

    reported_us: when the report arrived, by Kafka's clock. last_seen_us: when its last event of any kind arrived.
    resets_since: resets before it were dropped here.
    """

    complete_until: int
    reported_us: int
    last_seen_us: int
    complete_since: int
    resets_since: int


@dataclass(frozen=True, slots=True)
class End:
    """One end of a connection, as it is known now.

    known: the columns `END_FIELDS`, None: nobody watches it. agent: its agent's last
    report. reset_us: when its host last sent the other end an RST without a socket. silences_us: the least and the
    greatest silence of what its process itself closed together with it, this one included.
    """

    side: Side
    known: Mapping[str, Any] | None
    agent: AgentProgress | None
    reset_us: int | None
    silences_us: tuple[int, int]
    now_us: int
    limits: Limits

    def with_silences(self, least_us: int, greatest_us: int) -> Self:
        """Return the end with other `silences_us`."""
        return replace(self, silences_us=(least_us, greatest_us))

    def close(self, name: str) -> Any:
        """Return a field of its `close`; None while it is open."""
        close = self.known and self.known["close"]
        return close[name] if close else None

    @property
    def watched(self) -> bool:
        """Return True if an agent has reported the end."""
        return self.known is not None

    @property
    def closed(self) -> bool:
        """Return True if the end is closed in both directions."""
        return self.close("ended_us") is not None

    @property
    def itself(self) -> bool:
        """Return True if the end closed before it received the other end's FIN or RST."""
        by, how = self.close("closed_by"), self.close("how")
        return bool(by == "local" or (how == "rst_sent" and by != "peer"))

    @property
    def received_fin(self) -> bool:
        """Return True if the end learned of the other's close by a FIN."""
        return (self.close("closed_by"), self.close("how")) == ("peer", "fin")

    @property
    def got_reset(self) -> bool:
        """Return True if a received RST was the first sign of a close at this end."""
        return bool(self.close("how") == "rst_received" and self.close("closed_by") != "local")

    @property
    def sent_reset(self) -> bool:
        """Return True if the socket of the end sent an RST, or its host did because the socket was gone."""
        by_host = self.reset_us is not None and (not self.closed or self.reset_us >= self.closed_us)
        return self.close("how") == "rst_sent" or by_host

    @property
    def idle(self) -> bool:
        """Return True if the silence before the close is long enough for a limit on idle connections."""
        return self.closed and self.silent_for(self.limits.idle_minimum)

    @property
    def no_answer(self) -> bool:
        """Return True if data that the end sent was never acknowledged.

        It timed out, or closed with such data that it had sent after a silence.
        """
        in_vain = self.unacked > 0 and self.unanswered > 0
        gave_up = self.close("closed_by") == "local" and in_vain and self.idle and not self.exited
        return self.close("how") == "timeout" or gave_up

    @property
    def exited(self) -> bool:
        """Return True if the exit of its process closed the socket."""
        return bool(self.close("owner_exiting"))

    @property
    def ended(self) -> bool:
        """Return True if the process closed the socket and exited a moment later."""
        return bool(self.close("owner_ended"))

    @property
    def left(self) -> bool:
        """Return True if the last request was to leave the consumer group."""
        return bool(self.close("last_api") == "LeaveGroup")

    @property
    def tls_received_idle_us(self) -> int | None:
        """Return how long before its close it received the last TLS data.

        None: it received none, or does not use TLS.
        """
        hidden = self.known is not None and self.known["opaque"] == "tls"
        return self.close("received_idle_us") if hidden else None

    @property
    def unread(self) -> bool:
        """Return True if the last TLS data that it received may have been a close_notify.

        That is data that arrived right before the close, or not long before it if the process goes on.
        """
        if self.tls_received_idle_us is None:
            return False
        just_now = self.tls_received_idle_us < self.limits.close_notify_within * SECOND_US
        return bool(just_now or not (self.idle or self.ended))

    @property
    def refused(self) -> bool:
        """Return True if a response refused the credentials."""
        return self.close("auth_error") is not None

    @property
    def authenticating(self) -> bool:
        """Return True if the last request was one to authenticate, moments before the close."""
        asked_to = self.close("last_api") in ("SaslHandshake", "SaslAuthenticate")
        return asked_to and not self.silent_for(self.limits.authentication_within)

    @property
    def stopped_listening(self) -> bool:
        """Return True if the last socket that listened on the port was closed not long before."""
        since_us = self.close("listener_closed_us")
        return since_us is not None and since_us <= self.limits.shutdown_within * SECOND_US

    @property
    def asked(self) -> int:
        """Return the number of requests without a response."""
        return self.close("in_flight") or 0

    @property
    def owed(self) -> bool:
        """Return True if a request has no response, or a Produce with acks=0 was sent moments before."""
        without = self.close("last_api") == "Produce" and self.close("last_acks") == 0
        return self.asked > 0 or (without and not self.silent_for(self.limits.right_after))

    @property
    def produced_bytes(self) -> int | None:
        """Return the size of the last request if it was a Produce."""
        size: int | None = self.close("last_request_bytes") if self.close("last_api") == "Produce" else None
        return size

    @property
    def with_others(self) -> bool:
        """Return True if its process closed other connections at the same time after other silences.

        No limit on idle connections explains silences that differ.
        """
        least, greatest = self.silences_us
        margin_us = self.limits.idle_minimum * SECOND_US  # clients look at their limits every second or so
        return greatest > least * (1 + self.limits.same_age_percent / 100) + margin_us

    @property
    def silent(self) -> bool:
        """Return True if its agent has not reported for so long that no report is expected."""
        return self.agent is not None and self.now_us - self.agent.last_seen_us >= self.limits.agent_silent * SECOND_US

    def reported_until(self, until_us: float) -> bool:
        """Return True if its agent has reported everything up to then, by the clock of its host."""
        return self.agent is not None and self.agent.complete_until >= until_us

    def reported_until_of_another(self, until_us: float) -> bool:
        """Return True if its agent has reported everything up to a time of another host.

        No report is newer than its arrival in Kafka, even if the clock of this host is ahead.
        """
        return self.reported_until(until_us) and self.agent is not None and self.agent.reported_us >= until_us

    def lost_since(self, since_us: float) -> bool:
        """Return True if its agent lost what may be a close or a reset since then, by its host's clock."""
        return self.agent is not None and self.agent.complete_since > since_us

    def resets_dropped_since(self, since_us: float) -> bool:
        """Return True if its host sent more resets since then, by its own clock, than are kept."""
        return self.agent is not None and self.agent.resets_since > since_us

    def silent_for(self, seconds: float) -> bool:
        """Return True if its silence is at least that long."""
        return self.silence_us >= seconds * SECOND_US

    @property
    def silence_us(self) -> int:
        """Return its silence before the close; its whole age if no payload ever passed."""
        ages = (self.close(name) for name in ("silence_us", "idle_us", "age_us"))
        return next((age for age in ages if age is not None), 0)

    @property
    def closed_us(self) -> int:
        """Return the time at which it began to close, by the clock of its host; 0 while it is open."""
        return self.close("closing_us") or self.close("ended_us") or 0

    @property
    def closed_before_us(self) -> int:
        """Return `closed_us`, at most the time when Kafka got the close, to compare it with times of another host."""
        return min(self.closed_us, self.known["last_seen_us"]) if self.known else self.closed_us

    @property
    def closed_after_us(self) -> float:
        """Return the earliest time at which it may have closed, to compare it with times of another host.

        If the clock of its host is ahead, Kafka may have got the close as long afterwards as verdicts wait.
        """
        is_ahead = self.closed_before_us < self.closed_us
        return self.closed_before_us - self.limits.closed_limit * SECOND_US if is_ahead else self.closed_us

    # The same as texts.

    @property
    def name(self) -> str:
        return "broker" if self.side == "server" else "client"

    @property
    def silence(self) -> str:
        return seconds(self.silence_us)

    @property
    def silences(self) -> str:
        return " to ".join(map(seconds, self.silences_us))

    @property
    def api(self) -> str:
        return self.close("last_api") or "undecoded bytes"

    @property
    def request(self) -> str:
        """Return the last request, with its size."""
        size, without = self.close("last_request_bytes"), self.close("last_acks") == 0
        return f"{self.api}{' with acks=0' if without else ''}{f' of {size:,} bytes' if size else ''}"

    @property
    def process(self) -> str:
        owner = (self.known and self.known["workload"]) or {}
        return f"{_text(owner.get('comm'))}[{_text(owner.get('pid'))}]"

    @property
    def how(self) -> str:
        return _text(self.close("how"))

    @property
    def error(self) -> str:
        return _text(self.close("auth_error"))

    @property
    def unacked(self) -> int:
        return self.close("unacked_bytes") or 0

    @property
    def unanswered(self) -> int:
        return self.close("unanswered_retransmits") or 0

    @property
    def since_listening(self) -> str:
        since_us = self.close("listener_closed_us")
        return "?" if since_us is None else seconds(since_us)

    @property
    def last_report(self) -> str:
        """Return up to when its agent has reported everything, with a date that is not today's; "?" if unknown."""
        if self.agent is None or not self.agent.complete_until:
            return "?"
        until, now = (datetime.fromtimestamp(us / SECOND_US, UTC) for us in (self.agent.complete_until, self.now_us))
        return f"{until:%H:%M:%S}" if until.date() == now.date() else f"{until:%Y-%m-%d %H:%M:%S}"


def seconds(microseconds: int) -> str:
    """Return a time as `12.3 s`."""
    return f"{microseconds / SECOND_US:.1f} s"


def _text(value: object) -> str:
    return "?" if value is None else str(value)
