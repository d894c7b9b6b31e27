"""tshark reads rebuilt frames as it reads the recorded ones, and nothing that was withheld is in the file."""

from __future__ import annotations

import re
import subprocess
from collections import Counter, defaultdict
from contextlib import closing
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from kafka_probe.capture.sample import SAMPLE, SampleKind
from kafka_probe.connections.identity import read_open
from kafka_probe.conversations.capture_file import CaptureFile
from kafka_probe.conversations.copied_frames import CopiedFrame, CopiedSample, joined
from kafka_probe.conversations.packets import Endpoint, PacketMaker
from kafka_probe.conversations.wire_frames import wire_frame
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.kernel_allow_list import rules_hash
from tests.builders.recordings import Frame
from tests.lab.capture import Capture
from tests.lab.processes import free_port, wait_until
from tests.lab.replay import replaying
from tests.recorded.pcap import FIRST_CLIENT_PORT, PORT, recorded, write_pcap

pytestmark = pytest.mark.root

FIELDS = ("kafka.api_key", "kafka.api_version", "kafka.correlation_id", "kafka.client_id", "kafka.topic_name")
LOCALHOST = IPv4Address("127.0.0.1")
MATCHES = ("kafka.response_frame", "kafka.request_frame")
# Of versions that tshark knows: of Produce up to 8, of Fetch up to 11.
LEAST_EXCHANGES, LEAST_APIS = 480, 15
LEAST_OF_CLIENTS = {"kafka-python": 330, "segmentio": 100, "sarama": 16, "librdkafka": 13, "java": 12}
VERSIONS = {ApiKey.PRODUCE: {*range(3, 9)}, ApiKey.FETCH: {*range(4, 12)}}


class Read(NamedTuple):
    """A packet as tshark reads it. matched: it knows the request of a response, or the response of a request."""

    fields: tuple[str, ...]
    matched: bool
    malformed: bool
    unsupported: bool


@pytest.fixture(scope="module")
def frames() -> list[Frame]:
    return recorded()


@pytest.fixture(scope="module")
def copied(frames: list[Frame]) -> list[tuple[int, CopiedFrame]]:
    """Return the frames as the kernel copied them at the client's ends, each with the number of its connection."""
    port = free_port()
    with closing(Capture(port, server_side=False)) as capture, replaying(frames, port) as talks:
        numbers = {str(talk.names[0]): number for number, talk in talks.items()}
        local: dict[str, str] = {}
        samples: list[CopiedSample] = []

        def all_read() -> bool:
            while len(batch := capture._programs.buffer.take(1 << 20)):
                for sample in batch:
                    if sample["kind"] == SampleKind.OPEN:
                        local[str(sample["conn"])] = read_open(sample)[0].local
                    elif sample["kind"] == SampleKind.FRAME:
                        samples.append(_copied(sample))
            return sum(1 for sample in samples if not sample.part) == len(frames)

        wait_until(all_read, "all frames")
    return [(numbers[local[str(frame.first.conn_id)]], frame) for frame in joined(samples)]


def _copied(sample: np.void) -> CopiedSample:
    columns = {name: sample[name].item() for name in SAMPLE.names or () if name != "data"}
    return CopiedSample(
        ts_us=columns["ts_ns"] // 1000,
        node="node-1",
        agent_id="agent-1",
        conn_id=str(columns["conn"]),
        flow_id=None,
        copy_rules=rules_hash(),
        side="client",
        monotonic_ns=columns["ts_ns"],
        data=sample["data"].tobytes()[: columns["size"]],
        **{name: columns[name] for name in CopiedSample._fields if name in columns},
    )


@pytest.fixture(scope="module")
def rebuilt(copied: list[tuple[int, CopiedFrame]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture file of the copied frames."""
    path = tmp_path_factory.mktemp("rebuilt") / "rebuilt.pcapng"
    connections: dict[int, PacketMaker] = {}
    with path.open("wb") as file:
        output = CaptureFile(file, 1 << 30)
        for number, frame in copied:
            client, server = Endpoint(LOCALHOST, FIRST_CLIENT_PORT + number), Endpoint(LOCALHOST, PORT)
            connection = connections.setdefault(number, PacketMaker(client, server, None, None))
            first, wire = frame.first, wire_frame(frame)
            packets = connection.frame(
                first.ts_us, first.tcp_seq, wire, first.frame_bytes, output.may_fill, response=frame.response
            )
            for packet in packets:
                output.write(packet)
    return path


def test_tshark_reads_the_same_as_of_the_whole_frames(frames: list[Frame], rebuilt: Path, tmp_path: Path) -> None:
    write_pcap(tmp_path / "whole.pcap", frames)
    ours, whole = read(rebuilt), read(tmp_path / "whole.pcap")
    assert ours.keys() == whole.keys()
    exchanges, families = Counter[tuple[int, int]](), Counter[str]()
    for way, packets in whole.items():
        for found, wanted in zip(ours[way], packets, strict=True):
            if wanted.unsupported or wanted.malformed or not wanted.fields[0]:  # not decoded
                continue
            assert not found.malformed, (way, wanted)
            assert found.fields == wanted.fields
            if wanted.matched:
                assert found.matched, (way, wanted)
                correlation_id = wanted.fields[2]
                (asked,) = (each.fields for each in whole[way[::-1]] if each.fields[2] == correlation_id)
                key, version, _, client_id, _ = asked
                exchanges[int(key), int(version)] += 1
                families[client_id.rpartition("-")[0]] += 1
    print(families, exchanges)
    assert exchanges.total() >= LEAST_EXCHANGES
    assert len({key for key, _ in exchanges}) >= LEAST_APIS
    for client, least in LEAST_OF_CLIENTS.items():
        assert families[client] >= least
    for api, versions in VERSIONS.items():
        assert {version for key, version in exchanges if key == api} >= versions


def test_no_field_that_was_withheld_is_in_the_file(frames: list[Frame], rebuilt: Path) -> None:
    content = rebuilt.read_bytes()
    values = {match for frame in frames for match in re.findall(rb"(?:record|payment|order) \d", frame.data)}
    assert values
    assert [value for value in values if value in content] == []


def test_the_sequence_has_no_gap_and_the_file_is_valid(rebuilt: Path) -> None:
    subprocess.run(["capinfos", "-c", rebuilt], check=True, capture_output=True)
    flags = subprocess.run(
        ["tshark", "-r", rebuilt, "-Y", "tcp.analysis.flags", "-T", "fields", "-e", "frame.number"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert flags.stdout == ""


def read(path: Path) -> dict[tuple[str, str], list[Read]]:
    """Return what tshark reads of each packet with payload, by ports."""
    wanted = ("tcp.srcport", "tcp.dstport", *FIELDS, *MATCHES, "_ws.malformed", "_ws.expert.message")
    command = ["tshark", "-r", str(path), "-d", f"tcp.port=={PORT},kafka", "-Y", "tcp.len > 0", "-T", "fields"]
    command += [part for name in wanted for part in ("-e", name)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    packets = defaultdict(list)
    for line in output.split("\n")[:-1]:
        source, target, *values = line.split("\t")
        fields, (asked, answered, malformed, messages) = values[: len(FIELDS)], values[len(FIELDS) :]
        unsupported = "Unsupported" in messages
        packets[source, target].append(Read(tuple(fields), bool(asked or answered), bool(malformed), unsupported))
    return packets
