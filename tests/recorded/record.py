"""Records the conversations anew: `python -m tests.recorded.record`, or only those that are named.

Needs what `make setup-tests` installs, root for the capture, and a Go toolchain, which fetches the three Go clients as
go.mod in go/ names them; the tests need none of these, only the files written here. Nothing of this machine may be in
them: broker and clients talk over loopback, and every client gets its name as a setting.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.builders.recordings import Frame, exchanges, write
from tests.lab.broker import Broker
from tests.lab.clients import ROOT
from tests.lab.processes import LabError, start, stop, tail
from tests.lab.tcpdump import Address, Capture, segments
from tests.lab.topics import create_topics
from tests.lab.walker import Frames
from tests.recorded.conversations import CONVERSATIONS, Conversation, Lab

# A broker sends its clients the path of its data: this one reveals nothing.
DIRECTORY = Path("/tmp/kafka-probe-recorded")
TIMEOUT_S = 120


def main() -> int:
    """Record; return the exit status."""
    chosen = sys.argv[1:] or list(CONVERSATIONS)
    try:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        programs = build_go_clients() if any("go" in name for name in chosen) else DIRECTORY
        for name in chosen:
            frames = list(record(name, CONVERSATIONS[name], programs))
            path = write(name, frames)
            print(f"{name:30} {len(exchanges(frames)):5} requests {path.stat().st_size:7} bytes", flush=True)
    except LabError as error:
        print(f"record: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    return 0


def build_go_clients() -> Path:
    """Compile them; return the folder of their programs."""
    if shutil.which("go") is None:
        raise LabError("no Go toolchain: recording the Go clients needs the version in tests/recorded/go/go.mod")
    programs = DIRECTORY / "programs"
    programs.mkdir(parents=True)
    subprocess.run(["go", "build", "-o", programs, "./..."], cwd=Path(__file__).parent / "go", check=True)
    return programs


def record(name: str, conversation: Conversation, programs: Path) -> Iterator[Frame]:
    """Hold the conversation with a broker of its own; return its frames."""
    directory = DIRECTORY / name
    with Broker(directory, properties=conversation.properties) as broker:
        if conversation.topics:
            create_topics(broker.bootstrap, conversation.topics, partitions=2)
        with Capture(directory / "lo.pcap", broker.port) as capture:
            for step in conversation.steps:
                run(step(Lab(broker.bootstrap, programs, directory)), directory / "clients.log")
            capture.stop()
    private = [word.encode() for word in (socket.gethostname(), str(ROOT))]
    for frame in cut(capture.file, broker.port):
        for word in private:
            assert word not in frame.data, f"{name} contains {word!r}"
        yield frame


def run(commands: list[list[str]], log: Path) -> None:
    """Run programs at the same time, until all have ended.

    Raises:
        LabError: one of them failed.
    """
    running = [start(command, log=log, cwd=ROOT) for command in commands]
    try:
        for process in running:
            if process.wait(TIMEOUT_S):
                raise LabError(f"{process.args!r} failed:\n{tail(log)}")
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{error}:\n{tail(log)}") from None
    finally:
        for process in running:
            stop(process)


def cut(pcap: Path, port: int) -> Iterator[Frame]:
    """Return the frames of the connections opened in the capture, without one that a close left incomplete."""
    connections: dict[Address, int] = {}
    frames: dict[tuple[Address, Address], Frames] = {}
    for segment in segments(pcap):
        way = segment.source, segment.target
        response = segment.source[1] == port
        client = segment.target if response else segment.source
        if segment.restarts:
            frames[way] = Frames()
            if not response:
                connections[client] = len(connections)
        if way in frames:
            for data in frames[way].feed(frames[way].stream.feed(segment)):
                yield Frame(connections[client], response, data)


if __name__ == "__main__":
    sys.exit(main())
