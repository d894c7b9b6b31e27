"""Declares the events `open`, `close` and `reset`: how connections begin and end."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kafka_probe.events.shared_fields import KIND, TOPIC_ID, TOPIC_NAME, ConnectionFacts, Ends, Origin, Stamped


class Nat(TypedDict):
    """The ends of a connection beyond this host's NAT."""

    local: Annotated[str, "address:port of the watched end as the far end sees it"]
    peer: Annotated[str, "address:port of the far end on its own host"]


class ActivityTopic(TypedDict):
    """The sums of one topic over the flows of a connection."""

    topic: Annotated[str | None, TOPIC_NAME]
    topic_id: Annotated[
        str | None,
        f"{TOPIC_ID}, if known; if topic is null, too, the entry sums all other topics: an event names the 20 with "
        "most bytes of the connection's first 64, and no name that Kafka does not allow; see also activity_limit",
    ]
    requests: Annotated[int, "requests for the topic, as in flow"]
    bytes: Annotated[int, "size of all record sets"]


class ActivityFacts(TypedDict, total=False):
    """The sums of a connection's flows so far. They are absent in the first `open`, and if they exceed a bound."""

    requests: Annotated[
        int,
        "requests since the connection was first seen, without those that flow_limit counts; like sizes and topics "
        "absent in the first open, and where activity_limit counts the connection",
    ]
    request_bytes: Annotated[int, "size of these requests, as in flow"]
    response_bytes: Annotated[int, "size of their responses, as in flow"]
    group: Annotated[str, "consumer group of the newest flow with one; absent: none had one"]
    topics: Annotated[
        list[ActivityTopic], "sums by topic, those with most bytes first, without flows that topics_shed counts"
    ]


class SilenceFacts(TypedDict, total=False):
    """Silences of a connection. Absent in the first `open`."""

    present_silence_us: Annotated[
        int,
        "time since the last payload in either direction, or without any since the agent first saw the connection, µs",
    ]
    longest_silence_us: Annotated[
        int, "longest time without payload in either direction that the agent saw, with the present one, µs"
    ]


class RepeatedFacts(ActivityFacts, SilenceFacts, total=False):
    """The fields that only a repeated `open` event has."""

    still_open_ts: Annotated[
        int,
        "time at which the connection was still open, µs since epoch: the event repeats an earlier one with the facts "
        "known since, once per `--open-interval-s`; absent in the first",
    ]


class OpenEvent(ConnectionFacts, RepeatedFacts, Stamped):
    """The first sight of a connection, or with `still_open_ts` its repetition."""

    kind: Annotated[Literal["open"], KIND]
    found: Annotated[
        str,
        "start: seen from its first byte; midstream: opened earlier; listed: open when the agent started and without "
        "payload since then, so its flow_id is not known yet",
    ]
    handshake_us: Annotated[int | None, "duration of TCP's handshake, µs; null: it ended too long ago to be known"]
    cookie: Annotated[int | None, "the kernel's cookie of the socket, as `ss -e` shows it; null: it has none yet"]
    keepalive_s: Annotated[
        int | None,
        "silence after which the kernel probes the peer (SO_KEEPALIVE with TCP_KEEPIDLE or the sysctl "
        "net.ipv4.tcp_keepalive_time, when the agent first saw the connection with its present process), s; 0: it does "
        "not; 65,535: that or longer; null: not known, as while found is listed",
    ]
    nat: Annotated[
        Nat | None,
        "the ends beyond this host's NAT; null: not translated here, not looked up (`--conntrack`), or repeated",
    ]


class CloseFacts(TypedDict):
    """The facts of a close that the kernel reports."""

    closed_by: Annotated[str, "local, peer or unknown: which end closed first"]
    how: Annotated[str, "fin, rst_sent, rst_received, timeout or unknown"]
    idle_us: Annotated[int | None, "time from the last payload in either direction until this end began to close, µs"]
    silence_us: Annotated[
        int | None,
        "idle age, µs: idle_us, or the silence before the last payload sent if the peer did not acknowledge it",
    ]
    received_idle_us: Annotated[int | None, "the same from the last payload received; null: none was received"]
    last_api: Annotated[str | None, "API of the last request"]
    last_request_bytes: Annotated[int | None, "size of the last request on the wire, bytes; null: none was seen"]
    last_acks: Annotated[int | None, "0: the last request was a Produce with acks=0, which has no response; else null"]
    in_flight: Annotated[
        int,
        "requests without a response; includes what may be the first request of a connection not proven to be Kafka's",
    ]
    sent_bytes: Annotated[int, "payload bytes that the watched end sent, as TCP counts them"]
    received_bytes: Annotated[int, "payload bytes that the watched end received, likewise"]
    unacked_bytes: Annotated[int, "sent bytes that the peer never acknowledged"]
    retransmits: Annotated[int, "retransmitted segments"]
    unanswered_retransmits: Annotated[int, "consecutive retransmissions before the close without an answer of the peer"]
    srtt_us: Annotated[int, "smoothed round-trip time, µs"]
    keepalive: Annotated[bool, "the kernel probes the peer after a long silence (SO_KEEPALIVE)"]
    user_timeout_ms: Annotated[int | None, "TCP_USER_TIMEOUT; null: not set"]
    owner_exiting: Annotated[bool, "true: the exit of the process closed the socket, not a call"]


class CloseEvent(ConnectionFacts, CloseFacts, ActivityFacts, Stamped):
    """The close of a connection."""

    kind: Annotated[Literal["close"], KIND]
    found: Annotated[str, "as in open"]
    closing_ts: Annotated[
        int, "time when this end began to close, µs since epoch; ts: time when both directions were closed"
    ]
    age_us: Annotated[int, "time since the connection was first seen, µs; a lower bound if found is not start"]
    auth_error: Annotated[
        int | None, "error code of a SaslHandshake response, such as 33: mechanism not enabled; null: no error"
    ]
    owner_ended: Annotated[bool | None, "true: a second or two after this end was closed, the process had exited"]
    recorded_frames: Annotated[
        int | None,
        "frames that the recorder had for the archive; null: the connection ended normally, or there is no archive",
    ]
    evicted: Annotated[bool | None, "true: the recorder no longer had the last request; null as recorded_frames"]
    listener_closed_us: Annotated[
        int | None,
        "server side: time since the listening socket of its port was closed, µs; 0: up to a second later; null: it is "
        "open, or was closed before the agent started or by process exit, or 256 other listeners closed since",
    ]


class ResetEvent(Origin, Ends, Stamped):
    """An RST that this host sent without a socket."""

    kind: Annotated[Literal["reset"], KIND]
    direction: Annotated[str, "sent: this host answered a segment for which it had no socket"]
