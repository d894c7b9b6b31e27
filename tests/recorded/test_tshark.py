"""The headers of every recorded request equal tshark's, which reads all of them but not the newer bodies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.builders.recordings import names
from tests.lab.replay import Held
from tests.recorded.pcap import PORT, recorded, write_pcap

pytestmark = pytest.mark.root

HEADER = ("api_key", "api_version", "correlation_id", "client_id")
SOFTWARE = ("client_software_name", "client_software_version")


def test_tshark_reads_the_same_headers_and_libraries(everything: dict[str, list[Held]], tmp_path: Path) -> None:
    write_pcap(tmp_path / "frames.pcap", recorded())
    ours = [held for name in names() for held in everything[name]]
    theirs = requests(tmp_path / "frames.pcap")
    for held, (header, software) in zip(ours, theirs, strict=True):
        facts = held.asked.facts
        assert [facts.api_key, facts.api_version, held.asked.correlation_id] == list(map(int, header[:3]))
        assert (facts.client_id or "") == header[3]
        if held.known_version:
            assert [facts.software_name or "", facts.software_version or ""] == software


def requests(pcap: Path) -> list[tuple[list[str], list[str]]]:
    """Return tshark's reading of each request, in order: its header, and the names of its client's library."""
    command = ["tshark", "-r", str(pcap), "-d", f"tcp.port=={PORT},kafka", "-Y", f"tcp.dstport == {PORT}"]
    command += ["-T", "fields", *(part for field in (*HEADER, *SOFTWARE) for part in ("-e", f"kafka.{field}"))]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [line.split("\t") for line in answer.stdout.splitlines()]
    return [(line[: len(HEADER)], line[len(HEADER) :]) for line in lines]
