"""Redaction of command lines: hides secrets that the text before them identifies.

A secret is the text after a name such as `password`, in the same argument or in the next one, or the password of a URL.
The hidden text ends with its argument: quotes inside an argument belong to the program that reads it. In doubt more is
hidden. A secret without a name (`mysql -pX`, `curl -u user:X`) remains visible: only `--cmdline false` hides it.

No library does this: those that are maintained search source code. detect-secrets 1.5.0 finds 141 of 250 secrets whole,
which are five values in each form of test_redaction.py; this module hides all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

HIDDEN = b"***"

# Starts of words that end in `pass` and name no secret: `--bypass`, `compass=`.
_NO_PASS = (b"by", b"com", b"tres", b"sur", b"over", b"under", b"low", b"high", b"band", b"multi", b"single", b"two")
_PASS = b"".join(rb"(?<!%b)" % word for word in _NO_PASS) + rb"pass(?![a-z])"
_NAME = (
    rb"(?:pass(?:word|wd|phrase|code|in|out)|%b|pwd(?![a-z])|(?<![a-z])auth(?![a-z])|secret|token|credential"
    rb"|authorization|jaas|(?:api|access|account|private)[-_.]?key)"
) % _PASS
_IN_KEY = rb"[\w.\[\]\\\"'-]"
_KEY_END = _IN_KEY + rb"*+(?:%(?:25)?(?:2[27]|5[bcd]))*"
# The expressions scan a key once, from its start to the first name in it, and never again from within: strangers choose
# command lines, so matching must take time in proportion to their length.
_SECRET = rb"(?<!%b)(?>%b*?(%b))%b" % (_IN_KEY, _IN_KEY, _NAME, _KEY_END)
_OPTION = rb"(?<!%b)(?>%b*?(?<![^\s\"'])-[\w.-]*?%b)%b" % (_IN_KEY, _IN_KEY, _NAME, _KEY_END)
_IS = rb"\s*(?:[=:]>?|>|&gt;|%(?:25)?3[ade])"  # also as in tags and URLs
_VALUE = re.compile(rb"%b(?:%b|\s)\s*(?=\S)" % (_SECRET, _IS), re.IGNORECASE)
_NEXT = re.compile(rb"(?:%b%b|%b)\s*\Z" % (_SECRET, _IS, _OPTION), re.IGNORECASE)
# The text before the port of an address: a host may look like the name of a secret, as in `auth:9092`.
_HOST = re.compile(rb"://[^\s/?#;&,=\"'\\]*\Z")
_HOST_MAX_BYTES = 256
_PORT = re.compile(rb"\d{1,5}(?![\w@])")
_WORD = re.compile(rb"\S+")
_LAST_WORD = re.compile(rb"(?<!\S)\S++\Z")
_URL_USER = re.compile(rb"://[^\s/:\[]*:")


def redacted(command_line: bytes) -> bytes:
    """Return the arguments of a command line, separated by spaces, with `***` for secrets.

    command_line: as in /proc/PID/cmdline, each argument ended by NUL; without a final NUL it was cut.
    """
    shown = list(_shown(command_line.rstrip(b"\0").split(b"\0")))
    if not command_line.endswith(b"\0"):  # a URL's password may lack the `@` that shows it is no port
        shown[-1] = _LAST_WORD.sub(_without_cut_password, shown[-1])
    return b" ".join(shown)


def _shown(arguments: list[bytes]) -> Iterator[bytes]:
    hidden = False
    for argument in arguments:
        yield HIDDEN if hidden else _without_secrets(argument)
        # Also after a hidden argument, which may be an option itself if the one before takes no value.
        hidden = _NEXT.search(argument) is not None


def _without_secrets(argument: bytes) -> bytes:
    argument = _WORD.sub(_without_url_password, argument)
    for found in _VALUE.finditer(argument):
        if not (found[0].endswith(b":") and _is_address(argument, found.start(1), found.end())):
            return argument[: found.end()] + HIDDEN
    return argument


def _is_address(argument: bytes, name: int, port: int) -> bool:
    """Return True if a match is the end of a URL's host and a port, not a secret."""
    in_host = _HOST.search(argument, max(0, name - _HOST_MAX_BYTES), name)
    return in_host is not None and _PORT.match(argument, port) is not None


def _without_url_password(word: re.Match[bytes]) -> bytes:
    """Return the word with the text between the user of a URL and the last `@` hidden."""
    text = word[0]
    at = max(text.rfind(b"@"), 0)
    user = _URL_USER.search(text, 0, at)
    return text[: user.end()] + HIDDEN + text[at:] if user else text


def _without_cut_password(word: re.Match[bytes]) -> bytes:
    """Return the word with all text after the user of a URL hidden."""
    text = word[0]
    user = _URL_USER.search(text, 0, len(text) - 1)
    return text[: user.end()] + HIDDEN if user else text
