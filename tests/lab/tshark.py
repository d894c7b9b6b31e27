"""Reads capture files with tshark."""

from __future__ import annotations

import subprocess
from pathlib import Path


def packets(file: Path, *fields: str, only: str = "", port: int = 9093) -> list[list[str]]:
    """Return the values of fields of each packet that the display filter `only` accepts. port: of the broker."""
    command = ["tshark", "-r", str(file), "-d", f"tcp.port=={port},kafka", "-T", "fields"]
    command += [*(("-Y", only) if only else ()), *(part for field in fields for part in ("-e", field))]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [line.split("\t") for line in output.split("\n")[:-1]]
