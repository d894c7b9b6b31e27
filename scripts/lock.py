"""Writes the packages of the images with the hashes of their files to agent/deploy/requirements-*.txt.

Run it after a change of pyproject.toml or constraints.txt, with Python 3.11 on x86-64 as in the images. pip accepts
hashes only in requirements: not in constraints, and not for a directory or an editable installation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Packages that build this project and PySpark; those of the agent; those of the pipeline.
LOCKED = {
    "build": ("hatchling", "setuptools==84.2.1"),
    "agent": (".[conntrack,kubernetes]",),
    "pipeline": (".[alertmanager,pipeline]",),
}
HEADING = (
    "# By scripts/lock.py from constraints.txt, for Python 3.11 on x86-64: all packages that an image is made with.\n"
)


def lock(*wanted: str) -> str:
    """Return all packages that an installation of `wanted` requires, each with its version and file hash."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-"]
    report = subprocess.run(
        [*command, *wanted],
        cwd=ROOT,
        # A variable, because pip passes it on to the environments in which it builds packages.
        env={**os.environ, "PIP_CONSTRAINT": "constraints.txt"},
        stdout=subprocess.PIPE,
        check=True,
    )
    lines = []
    for item in json.loads(report.stdout)["install"]:
        if "archive_info" in item["download_info"]:  # not this project itself
            sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
            name = item["metadata"]["name"].lower().replace("_", "-")
            lines.append(f"{name}=={item['metadata']['version']} --hash=sha256:{sha256}\n")
    return HEADING + "".join(sorted(lines))


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit("lock.py: the images have Python 3.11; this is another.")
    for name, wanted in LOCKED.items():
        (ROOT / f"agent/deploy/requirements-{name}.txt").write_text(lock(*wanted))


if __name__ == "__main__":
    main()
