"""Builds frames as the kernel copies them, from messages."""

from __future__ import annotations

from kafka_probe.conversations.copied_frames import CUT, RESPONSE, CopiedFrame, CopiedSample
from kafka_probe.protocol.kernel_allow_list import rules_hash
from tests.builders.trees import Message


def copied(message: Message, data: bytes | None = None, flags: int = 0) -> CopiedFrame:
    """Return a frame as the kernel copies it."""
    wire = message.frame()
    first = CopiedSample(
        *(1, "node-1", "agent-1", "conn-1", None, rules_hash(), "client", 1, 1, len(wire), 1, 0),
        *(message.api.key, message.version, message.response * RESPONSE | flags, 0, b""),
    )
    return CopiedFrame(first, message.data if data is None else data, whole=True, copied_all=not flags & CUT)
