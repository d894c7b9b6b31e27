"""The header of every recorded request against tshark, where tshark is right: all but the bodies of newer versions."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from kafka_probe.protocol.decoder import decode
from tests.recorded.cut import request_data
from tests.recorded.pcap import PORT, write_pcap
from tests.recorded.recording import Frame, exchanges, names, read

FIELDS = ("api_key", "api_version", "correlation_id", "client_id", "client_software_name", "client_software_version")


def test_tshark_reads_the_same_headers(tmp_path: Path) -> None:
    frames = everything()
    write_pcap(tmp_path / "frames.pcap", frames)
    ours = []
    for request in exchanges(frames):
        data, copied_all = request_data(request)
        facts = decode(False, request.api_key, request.api_version, data, copied_all=copied_all).facts
        header = facts.api_key, facts.api_version, request.correlation_id, facts.client_id
        ours.append((*map(str, header), facts.software_name or "", facts.software_version or ""))
    assert requests_by_tshark(tmp_path / "frames.pcap") == ours


def everything() -> list[Frame]:
    """All recordings as one: their connections are numbered on."""
    frames: list[Frame] = []
    for name in names():
        first = max((frame.connection + 1 for frame in frames), default=0)
        frames += [replace(frame, connection=first + frame.connection) for frame in read(name)]
    return frames


def requests_by_tshark(pcap: Path) -> list[tuple[str, ...]]:
    command = [
        "tshark",
        "-r",
        str(pcap),
        "-d",
        f"tcp.port=={PORT},kafka",
        "-Y",
        f"tcp.dstport == {PORT}",
        "-T",
        "fields",
    ]
    command += [part for field in FIELDS for part in ("-e", f"kafka.{field}")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [tuple(line.split("\t")) for line in answer.stdout.splitlines()]
