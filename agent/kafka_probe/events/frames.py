"""Declares the `frames` event: samples of frames as the kernel copied them, for the archive.

An event has many samples, as lists of equal length: an object per sample would take most of the agent's time.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kafka_probe.events.shared_fields import KIND, Origin, Stamped


class FramesEnd(TypedDict):
    """The end of a connection at which frames were seen."""

    conn_id: Annotated[str, "as in open"]
    flow_id: Annotated[str | None, "as in open"]
    side: Annotated[str, "as in open"]


class FrameSamples(TypedDict):
    """Samples of frames: lists of equal length, with one value per sample."""

    end: Annotated[list[int], "index in ends"]
    monotonic_ns: Annotated[list[int], "time at which the frame's header was complete, ns of CLOCK_MONOTONIC"]
    tcp_seq: Annotated[list[int], "TCP sequence number of the frame's first byte"]
    frame_bytes: Annotated[list[int], "size of the frame with its length prefix"]
    correlation_id: Annotated[list[int], "correlation id"]
    latency_us: Annotated[list[int], "responses: time since the request's header, µs; else 0"]
    api_key: Annotated[list[int], "API key; 255: a response whose request was not seen"]
    api_version: Annotated[list[int], "API version"]
    flags: Annotated[
        list[int],
        "1: a response; 2: the next sample of this direction continues the frame; 4: the copy ended early; "
        "16: the kernel skipped earlier frames of this direction while it searched for the start of a frame",
    ]
    part: Annotated[list[int], "index of the sample in its frame, from 0"]
    data: Annotated[
        list[str],
        "the bytes of the frame from behind its correlation id, without what the rules hide, in base64",
    ]


class FramesEvent(Origin, Stamped):
    """Samples of frames, those of each connection in the order of their times."""

    kind: Annotated[Literal["frames"], KIND]
    copy_rules: Annotated[str, "hash of the rules by which the kernel copied the frames"]
    wall_offset_ns: Annotated[int, "wall clock minus CLOCK_MONOTONIC at the time of the event, ns"]
    ends: Annotated[list[FramesEnd], "the ends of connections at which the frames were seen"]
    samples: Annotated[FrameSamples, "one value per sample in each list"]
