"""The completion of commands and flags in a shell, as the guide sets it up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = "docs/guide/answers.md"
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "expected"), [(["disc"], "disconnects"), (["why", "--cl"], "--client"), (["topic", "--lim"], "--limit")]
)
def test_bash_completes_commands_and_flags(words: list[str], expected: str) -> None:
    (documented,) = re.findall(r"^eval .*$", (ROOT / DOCUMENT).read_text(), re.MULTILINE)
    command = f"{Path(sys.executable).parent}/kafka-probe"
    script = f"""
        {documented.replace(".venv/bin/kafka-probe", command)}
        COMP_WORDS=({command} {" ".join(words)}) COMP_CWORD={len(words)}
        _kafka_probe_completion {command}
        echo "${{COMPREPLY[@]}}"
    """
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == (f"{expected}\n", "")
