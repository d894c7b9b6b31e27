"""scripts/words.py: which prose it reads, which words it refuses, and how a docstring may begin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "words.py"


def lint(path: Path, text: str) -> tuple[int, list[str]]:
    """Return the exit status, and the line numbers and words that are reported."""
    path.write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False)
    reported = [line.removeprefix(f"{path}:").split(":") for line in done.stdout.splitlines()]
    return done.returncode, [f"{number}{word}" for number, word, *_ in reported]


@pytest.mark.parametrize(
    ("name", "text", "reported"),
    [
        ("a.py", '"""Is told.\n\nA word: heard.\n"""\n', ["1 'told'", "3 'heard'"]),
        ("a.py", "said = 1  # what was said\n", ["1 'said'"]),
        ("a.py", "says = 1  # what it says\n", ["1 'says'"]),
        ("a.py", 'parametrize("told", ["he told"])\n', ["1 'told'"]),
        ("a.py", 'print("Told so", f"{1} rooms")\n', ["1 'Told'", "1 'rooms'"]),
        ("a.py", '"""`said` is a name, untold is a word."""\n', []),
        ("a.h", "int told; // whoever reads it\n", ["1 'whoever'"]),
        ("a.md", "The house\n`house`\n", ["1 'house'"]),
        ("a.md", "Log what waits.\n", ["1 'what waits'"]),
        ("a.yaml", "# As told\nkey: value  # said\n", ["1 'told'", "2 'said'"]),
        ("a.json", '{\n  "description": "What the agent said"\n}\n', ["2 'said'"]),
        ("a.properties", "# Told by Spark.\nlogger.utils.level = error\n", ["1 'Told'"]),
        ("Makefile", "target: ## what was heard\n", ["1 'heard'"]),
    ],
)
def test_prose_is_linted_and_code_is_not(tmp_path: Path, name: str, text: str, reported: list[str]) -> None:
    assert lint(tmp_path / name, text) == (int(bool(reported)), reported)


TWENTY = "Return " + "a " * 19


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (f'"""{TWENTY}."""\n', []),
        (f'"""{TWENTY}b."""\n', ["1 21 words before the first full stop"]),
        (f'"""{TWENTY}\n\nb."""\n', []),
        (f'"""{TWENTY}. b"""\n', []),
        ('"""Return `""" + "a " * 30 + """`."""\n', []),
        (
            f'class A:\n    """A."""\n\n    async def b(self):\n        """{TWENTY}\n        b."""\n',
            ["5 21 words before the first full stop"],
        ),
        (f'def test_a():\n    """{TWENTY}b."""\n', []),
    ],
)
def test_a_first_sentence_of_more_than_twenty_words_is_reported(tmp_path: Path, text: str, reported: list[str]) -> None:
    assert lint(tmp_path / "a.py", text) == (int(bool(reported)), reported)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('"""Its answer."""\n', ["1 a docstring begins with 'Its'"]),
        ('def test_a():\n    """By the second one."""\n', ["2 a docstring begins with 'By'"]),
        ('class A:\n    """\n    Also, A."""\n', ["2 a docstring begins with 'Also'"]),
        ('"""Offsets. By and by."""\n', []),
        ('A = "Not a docstring"\n', []),
    ],
)
def test_a_docstring_that_begins_as_a_fragment_is_reported(tmp_path: Path, text: str, reported: list[str]) -> None:
    assert lint(tmp_path / "a.py", text) == (int(bool(reported)), reported)
