"""Reports words that the prose of this project does not use, in docstrings, comments and texts, outside of backticks.

    words.py FILE...

Exit status 1 if there are any. CONTRIBUTING.md says how to write instead.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REFUSED = re.compile(r"\b(told|said|heard|whoever|rooms?|house|no word of its own)\b", re.IGNORECASE)
_QUOTED = re.compile(r"`[^`]*`")


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


def main() -> int:
    found = [
        f"{path}:{number}: {refused[0]!r}: {text.strip()}"
        for path in map(Path, sys.argv[1:])
        for number, text in prose(path)
        if (refused := REFUSED.search(_QUOTED.sub("", text)))
    ]
    print(*found, sep="\n", end="\n" * bool(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
