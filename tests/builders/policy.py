"""SECURITY.md as text, and the numbers in it that nothing explains."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_FILE = Path(__file__).parents[2] / "SECURITY.md"
_OF_THE_PIPELINE = "## What others can make the pipeline do", "## What a name can do"


def policy_texts() -> tuple[str, str]:
    """Return the text about the agent, and that about the pipeline, each with single spaces."""
    before, _, rest = " ".join(_FILE.read_text().split()).partition(_OF_THE_PIPELINE[0])
    pipeline, heading, after = rest.partition(_OF_THE_PIPELINE[1])
    assert heading
    return before + after, pipeline


def unexplained(text: str, sentences: Iterable[str]) -> list[str]:
    """Return the sentences of a text with a number outside of the given parts. The text must have all parts."""
    for sentence in sentences:
        assert sentence in text
        text = text.replace(sentence, "")
    return re.findall(r"[^.:;]*\d[^.:;]*", text)
