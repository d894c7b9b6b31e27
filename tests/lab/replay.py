"""Replays a recording: every frame goes over a real connection, and the product reports what it decoded."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from kafka_probe.protocol.facts import Facts
from kafka_probe.protocol.schemas import apis
from tests.builders import oracle
from tests.builders.recordings import Frame, Request, exchanges, read
from tests.builders.wire import Seen
from tests.lab.capture import Capture
from tests.lab.conversation import Conversation, conversation, receive_all


@dataclass(frozen=True, slots=True)
class Held:
    """An exchange of the recording, with its frames as both ends reported them."""

    recorded: Request
    asked: Seen
    answered: Seen | None

    @property
    def api(self) -> str:
        return apis()[self.recorded.api_key].name

    @property
    def known_version(self) -> bool:
        """Return True if the broker supports the version: franz-go sends an ApiVersions request that it does not."""
        return self.recorded.api_version in apis()[self.recorded.api_key].versions

    @property
    def bodies(self) -> list[tuple[Facts, Any]]:
        """Return both frames as they were reported, and their bodies from kio."""
        found = [(self.asked.facts, oracle.read_body(self.recorded, response=False))]
        if self.answered is not None:
            found.append((self.answered.facts, oracle.read_body(self.recorded, response=True)))
        return found


@dataclass(frozen=True, slots=True)
class Replay:
    """A whole conversation, and its losses by reason."""

    held: list[Held]
    lost: dict[str, int]


def replay(capture: Capture, port: int, name: str) -> Replay:
    """Replay the conversation of this name; both ends must report all of its frames, and report them alike."""
    capture.begin()
    frames = list(read(name))
    seen: dict[Frame, Seen] = {}
    with replaying(frames, port) as talks:
        sent = defaultdict(list)
        for frame in frames:
            sent[frame.connection].append(frame)
        ends = {(end.identity.local, end.identity.peer): end.frames for end in capture.ends}
        for connection, talk in talks.items():
            assert ends[talk.names] == ends[talk.names[::-1]]
            seen.update(zip(sent[connection], ends[talk.names], strict=True))
    held = [Held(each, seen[each.frame], seen[each.response] if each.response else None) for each in exchanges(frames)]
    return Replay(held, capture.lost())


@contextmanager
def replaying(frames: Iterable[Frame], port: int) -> Iterator[dict[int, Conversation]]:
    """Yield the conversations that send the frames, by number of the connection, before their ends are closed."""
    with ExitStack() as stack:
        talks: dict[int, Conversation] = {}
        for frame in frames:
            if frame.connection not in talks:
                talks[frame.connection] = stack.enter_context(conversation(port))
            _send(talks[frame.connection], frame)
        yield talks


def _send(talk: Conversation, frame: Frame) -> None:
    sender, receiver = (talk.server, talk.client) if frame.response else (talk.client, talk.server)
    wire = struct.pack(">i", len(frame.data)) + frame.data
    sender.sendall(wire)
    receive_all(receiver, len(wire))
