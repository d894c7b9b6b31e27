"""The generated documents match the code, a stale one is reported, and other documents name the numbers of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_probe.config import Config, flag_of, is_secret, variable_of
from kafka_probe.events import KINDS
from kafka_probe.memory import DEFAULT
from scripts.docs import setting_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def docs(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.docs", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


@pytest.mark.pinned  # rich draws the pictures
def test_the_generated_files_are_up_to_date() -> None:
    checked = docs("--check")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_setting_and_every_kind_of_event_is_documented() -> None:
    settings, events = ((DOCS / "reference" / name).read_text() for name in ("configuration.md", "events.md"))
    assert [name for name in Config.model_fields if f"| `{name}` |" not in settings] == []
    assert [kind for kind in KINDS if f"## {kind}: " not in events] == []


def test_a_stale_or_missing_file_is_reported_and_brought_up_to_date(tmp_path: Path) -> None:
    root = ("--root", tmp_path)
    assert docs(*root).returncode == 0
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert docs("--check", *root).returncode == 0
    stale, missing, *_ = written
    stale.write_text("something older\n")
    missing.unlink()
    checked = docs("--check", *root)
    assert checked.returncode == 1
    assert sorted(line.split()[0] for line in checked.stderr.splitlines()) == sorted(
        str(path.relative_to(tmp_path)) for path in (stale, missing)
    )
    assert docs(*root).returncode == 0
    assert {path: path.read_bytes() for path in written} == written


def test_the_pictures_request_nothing_from_the_network() -> None:
    pictures = [*(DOCS / "images").glob("*.svg")]
    assert pictures
    for picture in pictures:
        addresses = re.findall(r"\w+://[^\s\"')]+", picture.read_text())
        assert addresses == ["http://www.w3.org/2000/svg"], picture.name


def test_every_message_that_it_explains_is_one_that_we_print() -> None:
    sources = [*ROOT.glob("agent/**/*.py"), *ROOT.glob("pipeline/**/*.py"), ROOT / "scripts/setup.sh"]
    # As one text, with the pieces of a string literal that stands on several lines put together.
    text = re.sub(r'"\s*\n\s*f?"', "", "\n".join(source.read_text() for source in sources))
    troubleshooting = (DOCS / "guide/troubleshooting.md").read_text().partition("| what you see |")[0]
    messages = re.findall(r"^\| `(.+?)` \|", troubleshooting, re.MULTILINE)
    assert len(messages) > 10
    parts = {part.strip(" .:;") for message in messages for part in message.split("...")}
    assert sorted(part for part in parts if part not in text) == []


def test_the_limit_of_connections_is_that_of_the_default_memory_limit() -> None:
    limits = (DOCS / "explain/limits.md").read_text()
    assert f"else {DEFAULT.connections:,}, or as `--memory-limit` allows" in limits


def test_the_table_for_the_docs_has_a_row_for_every_field() -> None:
    rows = setting_table().splitlines()[2:]
    assert len(rows) == len(Config.model_fields)
    for (name, field), row in zip(Config.model_fields.items(), rows, strict=True):
        assert f"| `{name}` |" in row
        assert variable_of(name) in row
        assert field.description
        assert field.description in row
        assert (flag_of(name) in row) is not is_secret(field)
        assert len(row.replace("\\|", "").split("|")) == 8
