"""Lists hostile names of clients, topics and processes, and checks that an output shows them as text."""

from __future__ import annotations

import re

NAMES = (
    "[/x]",
    "[link=http://127.0.0.1/]click[/link]",
    "[bold red]",
    ":warning:",
    "\\",
    "\x1b[2J\x1b]0;title\x07",
    "\x1b]8;;http://127.0.0.1/\x1b\\click",
    "\x9b2J\x85next",
    "\x7f\x08\x08\x08",
    "one\r\n12:00:00 ERROR   forged",
    'one",client="two"} 1\n# EOF\n',
    '{"kind":"agent"}\n{"kind":"agent"}',
    "\u202eexe.txt\u2066\u2069",
    "line\u2028paragraph\u2029",
    "zero\u200bwidth\u200d\ufeff",
    "\U000e0041tag",
    "\u115f\u1160\u3164\uffa0\u2800\ufe0fblank",
    "stacked" + "\u0336\u0489" * 50,
    "<script>alert(1)</script>",
    "{subject} {0.__class__} %s %(name)s",
    "\N{REPLACEMENT CHARACTER}",
    "",
    " ",
    "x" * 32_767,
    "\x1b" * 32_767,
)
LONE_SURROGATE = "a\ud800\udfff"  # such as a file's name may have; no JSON encoder takes it
UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xa0\u115f\u1160\u200b-\u200f\u2028-\u202f\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ud800-\udfff\U000e0000-\U000e01ef]|[\u0300-\u036f\u0483-\u0489]{5}"
)
"""What no output may contain; line feeds are looked at apart."""


def unsafe(output: str | bytes) -> list[str]:
    """Return the characters of an output that must not reach a terminal or a log."""
    return UNSAFE.findall(output if isinstance(output, str) else output.decode())
