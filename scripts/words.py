"""Reports words that the prose of this project does not use, and docstrings that begin badly.

    words.py FILE...

Words are looked for in docstrings, comments and texts, outside of backticks. A docstring begins badly if its first
word makes it a fragment, or its first sentence is too long. Exit status 1 if anything is reported. CONTRIBUTING.md
explains how to write instead.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REFUSED = re.compile(
    r"\b(told|tells?|said|says|heard|whoever|what waits|rooms?|house|no word of its own)\b", re.IGNORECASE
)
FRAGMENT = re.compile(r"(Its|Not|By|Also|As|Until|Of|Whether|What|Where|Who|How)\b")
FIRST_SENTENCE_WORDS = 20
_QUOTED = re.compile(r"`[^`]*`")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n\n")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers and the prose in them: comments and strings of Python, comments of C, all of other files."""
    if path.suffix == ".py":
        with path.open("rb") as file:
            yield from (
                (token.start[0], token.string)
                for token in tokenize.tokenize(file.readline)
                if token.type == tokenize.COMMENT
            )
        for node in ast.walk(ast.parse(path.read_text())):
            # A single identifier is a name, as in `parametrize`.
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier():
                yield from enumerate(node.value.splitlines(), node.lineno)
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield number, line.partition("//")[2] if path.suffix in (".c", ".h") else line


def docstrings(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line numbers and docstrings of Python, and True for those of tests, whose names are sentences."""
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_test = not isinstance(node, ast.Module) and node.name.startswith("test_")
        if docstring := ast.get_docstring(node):
            yield node.body[0].lineno, docstring, is_test


def words_of_first_sentence(docstring: str) -> int:
    """Return the number of words; a text in backticks is one."""
    return len(_SENTENCE_END.split(_QUOTED.sub("quoted", docstring))[0].split())


def findings(path: Path) -> Iterator[str]:
    """Yield a report of each line with a refused word, and of each docstring that begins badly."""
    for number, text in prose(path):
        if refused := REFUSED.search(_QUOTED.sub("", text)):
            yield f"{path}:{number}: {refused[0]!r}: {text.strip()}"
    for number, docstring, is_test in docstrings(path):
        line = docstring.splitlines()[0]
        if fragment := FRAGMENT.match(docstring):
            yield f"{path}:{number}: a docstring begins with {fragment[0]!r}: {line}"
        if not is_test and (words := words_of_first_sentence(docstring)) > FIRST_SENTENCE_WORDS:
            yield f"{path}:{number}: {words} words before the first full stop: {line}"


def main() -> int:
    found = [finding for path in map(Path, sys.argv[1:]) for finding in findings(path)]
    print(*found, sep="\n", end="\n" * bool(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
