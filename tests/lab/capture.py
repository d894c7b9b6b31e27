"""Runs the real capture on a conversation: kernel programs, ring buffer and frame reader, end by end."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from kafka_probe.capture.options import Options
from kafka_probe.capture.programs import LOSSES, Programs
from kafka_probe.capture.sample import DATA_BYTES, Flag, Protocol, SampleKind, Samples
from kafka_probe.connections.close_reason import read_close
from kafka_probe.connections.frame_reader import FrameReader, Frames
from kafka_probe.connections.identity import Identity, read_keepalive_s, read_open
from kafka_probe.startup import rules
from kafka_probe.workloads import Cgroups, Owner
from tests.builders.wire import MARKER, Seen
from tests.lab.conversation import TIMEOUT_S, Conversation, exchange
from tests.lab.processes import wait_until

RING_BYTES = 1 << 24
MAX_CONNECTIONS = 1 << 17
# The matrix of kernels sets these in its guests, where a compiler would take minutes: programs come with the job.
BACKEND = os.environ.get("GOLDEN_BACKEND", "auto")
BUFFER = os.environ.get("GOLDEN_BUFFER", "auto")
AT_ONCE_NS = 900_000_000  # an emulated processor beside other work may need this long to close sockets
CACHE = Path(os.environ["GOLDEN_CACHE"]) if "GOLDEN_CACHE" in os.environ else None


@dataclass(slots=True)
class End:
    """The observations at one end of a connection."""

    identity: Identity
    owners: list[Owner]
    keepalive_s: int
    frames: list[Seen] = field(default_factory=list)
    opaque: Protocol | None = None
    closed: Any = None  # as read_close returns
    gone: bool = False

    @property
    def pids(self) -> set[int]:
        return {owner.pid for owner in self.owners}


class Capture:
    """Attached programs. `ports` empty: every port; `netns`: the inode of the one namespace to watch."""

    def __init__(
        self,
        *ports: int,
        client_side: bool = True,
        server_side: bool = True,
        agent_pid: int = 0,
        netns: int = 0,
        buffer: str = BUFFER,
        ring_bytes: int = RING_BYTES,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        options = Options(
            ports,
            client_side,
            server_side,
            agent_pid,
            ring_bytes,
            cgroup_subsystem=Cgroups().v1_controller,
            max_connections=max_connections,
            netns=netns,
        )
        self._programs = Programs.load(BACKEND, buffer, options, rules(), CACHE)
        self._ports = ports
        self.begin()

    def begin(self) -> None:
        """Drop everything seen so far."""
        while len(self._programs.buffer.take(1 << 20)):
            pass
        self._before = Counter(self._programs.counters())
        self._reader = FrameReader()
        self._ends: dict[int, End] = {}
        self.sockets: list[tuple[SampleKind, bool, Identity, int]] = []

    def close(self) -> None:
        self._programs.close()

    @property
    def links(self) -> list[int]:
        """Return the file descriptors of the links that keep the programs attached."""
        return self._programs._links

    @property
    def backend(self) -> str:
        """Return the name of the backend."""
        return self._programs.backend

    @property
    def instructions(self) -> dict[str, int]:
        """Return the number of instructions that the verifier processed, by program."""
        return self._programs.instructions

    @property
    def ends(self) -> list[End]:
        """Return every end in the order of first sight; no sample and no sequence of samples may contain MARKER."""
        while len(samples := self._programs.buffer.take(1 << 20)):
            assert MARKER not in samples.tobytes()
            assert MARKER not in samples["data"][np.arange(DATA_BYTES) < samples["size"][:, np.newaxis]].tobytes()
            whole = (samples["kind"] == SampleKind.FRAME) & (samples["part"] == 0) & (samples["flags"] & Flag.MORE == 0)
            for some in np.split(np.arange(len(samples)), np.flatnonzero(whole[1:] != whole[:-1]) + 1):
                if whole[some[0]]:
                    self._take_frames(samples[some])
                else:
                    for sample in samples[some]:
                        self._take(sample)
        return list(self._ends.values())

    @property
    def resets(self) -> list[tuple[str, str]]:
        """Return the local address and the peer of each reset without a socket in `sockets`."""
        return [(end.local, end.peer) for kind, _, end, _ in self.sockets if kind == SampleKind.RESET]

    def followed(self) -> set[int]:
        """Return the kernel's ids of the connections that it tracks."""
        return self._programs.followed()

    def longest_silence_s(self, conn: int) -> float:
        """Return the longest silence between two payloads of a connection, by the kernel's id."""
        (head,) = self._programs.heads_of([conn])
        return float(head["longest_silence_ns"] / 1e9)

    def fills(self) -> bool:
        """Return True if the kernel reports that the buffer fills."""
        return self._programs.buffer.wait(TIMEOUT_S)

    def samples(self, most: int = 1 << 20) -> Samples:
        """Return the samples themselves, as in the buffer, instead of decoded facts."""
        return self._programs.buffer.take(most)

    def ends_of(self, talk: Conversation) -> list[End]:
        """Return the client's end and the server's end, as far as they were seen."""
        ends = {(end.identity.local, end.identity.peer): end for end in self.ends}
        return [ends[pair] for pair in (talk.names, talk.names[::-1]) if pair in ends]

    def both_ends_of(self, talk: Conversation) -> list[End]:
        """Return the client's end and the server's end; assert that both were seen."""
        ends = self.ends_of(talk)
        assert [end.identity.local for end in ends] == list(talk.names)
        return ends

    def lost(self) -> dict[str, int]:
        """Return the losses that are not zero, by reason."""
        counters = self._programs.counters()
        losses = {name: counters[name] - self._before[name] for name in LOSSES} | self._reader.losses
        return {name: count for name, count in losses.items() if count}

    def saw(self, talk: Conversation, *, may_lose: Collection[str] = ()) -> bool:
        """Assert that both ends saw exactly the bytes sent, owned by this process, and that nothing was lost.

        may_lose: losses that other traffic may cause meanwhile.
        """
        ends = self.ends_of(talk)
        assert [end.identity.server_side for end in ends] == [False, True]
        for end in ends:
            assert end.frames == talk.sent, self.lost()
            assert end.pids == {os.getpid()}
        assert ends[0].identity.flow_id == ends[1].identity.flow_id
        lost = self.lost().keys() - may_lose
        assert not lost, self.lost()
        return True

    def soon_saw(self, talk: Conversation) -> bool:
        """Assert that both ends of a connection that is older than the capture are found within three exchanges."""
        exchange(talk, range(10, 20))
        for end in self.both_ends_of(talk):
            assert not end.identity.from_start
            assert end.frames == talk.sent[-len(end.frames) :]
            assert len(end.frames) >= len(talk.sent) - 4
        return True

    def entries(self, map_name: str) -> int:
        """Return the number of entries of a map of the attached programs, as bpftool counts them."""
        information = Path(f"/proc/self/fdinfo/{self.links[0]}").read_text()
        (program_id,) = re.findall(r"^prog_id:\s*(\d+)$", information, re.MULTILINE)
        maps = [
            _bpftool("map", "show", "id", str(number))
            for number in _bpftool("prog", "show", "id", program_id)["map_ids"]
        ]
        (wanted,) = (found["id"] for found in maps if found["name"] == map_name)
        return len(_bpftool("map", "dump", "id", str(wanted)))

    def wait_closed(self, talk: Conversation) -> list[End]:
        """Return both ends once both are gone."""
        wait_until(lambda: [end.gone for end in self.ends_of(talk)] == [True, True], "both ends to close", timeout_s=10)
        return self.both_ends_of(talk)

    def _take(self, sample: Any) -> None:
        conn = int(sample["conn"])
        match SampleKind(sample["kind"]):
            case SampleKind.OPEN:
                identity, owner = read_open(sample)
                self._ends[conn] = End(identity, [owner], read_keepalive_s(sample))
            case SampleKind.OWNER if conn in self._ends:
                self._ends[conn].owners.append(read_open(sample)[1])
            case SampleKind.REJECT if conn in self._ends:
                self._ends[conn].opaque = Protocol(sample["api_key"])
            case SampleKind.CLOSE if conn in self._ends:
                end = self._ends[conn]
                end.closed = read_close(sample, tls=end.opaque is Protocol.TLS, at_once_ns=AT_ONCE_NS)
            case SampleKind.GONE:
                self._reader.forget(conn)
                if conn in self._ends:
                    self._ends[conn].gone = True
            case SampleKind.FRAME:
                self._take_frames(sample.reshape(1))
            case SampleKind.RESET | SampleKind.LISTEN as kind:
                identity, owner = read_open(sample)
                self.sockets.append((kind, bool(sample["flags"] & Flag.CLOSED), identity, owner.pid))

    def _take_frames(self, samples: Samples) -> None:
        """Take frames in the order of their samples, and of a long frame one sample at a time."""
        seen = [found for frames in self._reader.read(samples) for found in _seen(frames)]
        for _, conn, frame in sorted(seen, key=itemgetter(0)):
            end = self._ends.get(conn)
            # With every port watched, others may be busy here, too.
            if end and (self._ports or os.getpid() in end.pids):
                end.frames.append(frame)


def _seen(frames: Frames) -> Iterator[tuple[int, int, Seen]]:
    """Yield each frame with its position in the batch and its connection."""
    for place, values in zip(frames.index.tolist(), frames.values.tolist(), strict=True):
        sample = frames.batch[place]
        seen = Seen(
            frames.shape.facts,
            int(sample["correlation_id"]),
            int(sample["frame_bytes"]),
            tuple((m.kind, m.topic, m.partition, v) for m, v in zip(frames.shape.measures, values, strict=True)),
        )
        yield place, int(sample["conn"]), seen


def _bpftool(*arguments: str) -> Any:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    return json.loads(subprocess.check_output(["bpftool", "--json", *arguments], env=environment))
