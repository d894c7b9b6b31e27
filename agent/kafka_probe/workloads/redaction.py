"""Command lines without the secrets that can be told by what stands before them.

A secret is what follows a name such as `password`, in the same argument or in the next one, or the password of a URL.
What is hidden ends with its argument: quoting inside of an argument is that of the program which reads it. In doubt
more is hidden. A secret without a name (`mysql -pX`, `curl -u user:X`) stays: only `--cmdline off` hides it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

HIDDEN = b"***"

# Words that end in `pass` and name no secret: `--bypass`, `compass=`.
_NO_PASS = (b"by", b"com", b"tres", b"sur", b"over", b"under", b"low", b"high", b"band", b"multi", b"single", b"two")
_PASS = b"".join(rb"(?<!%b)" % word for word in _NO_PASS) + rb"pass(?![a-z])"
_SECRET = (
    rb"(?:pass(?:word|wd|phrase|code|in|out)|%b|pwd(?![a-z])|(?<![a-z])auth(?![a-z])|secret|token|credential|authorization"
    rb"|jaas|(?:api|access|account|private)[-_.]?key)[\w.\[\]\\\"'-]*+(?:%%(?:25)?(?:2[27]|5[bcd]))*"
) % _PASS
_IS = rb"\s*(?:[=:]>?|>|&gt;|%(?:25)?3[ade])"  # also as in tags and URLs
_OPTION = rb"(?<![^\s\"'])--?[\w.-]*" + _SECRET
_VALUE = re.compile(rb"%b(?:%b|\s)\s*(?=\S)" % (_SECRET, _IS), re.IGNORECASE)
_NEXT = re.compile(rb"(?:%b%b|%b)\s*\Z" % (_SECRET, _IS, _OPTION), re.IGNORECASE)
# What stands before the port of an address: a host that looks like a name of a secret, as `auth:9092`.
_HOST = re.compile(rb"://[^\s/?#;&,=\"'\\]*\Z")
_PORT = re.compile(rb"\d{1,5}(?![\w@])")
_URL_PASSWORD = re.compile(rb"(://[^\s/:\[]*:)\S*(?=@)")
_URL_CUT = re.compile(rb"(://[^\s/:\[]*:)\S+\Z")


def redacted(command_line: bytes) -> bytes:
    """Return the arguments of a command line, separated by spaces, with `***` for secrets.

    command_line: as in /proc/PID/cmdline, each argument ended by NUL; one that does not end so was cut.
    """
    shown = list(_shown(command_line.rstrip(b"\0").split(b"\0")))
    if not command_line.endswith(b"\0"):  # a URL's password may have lost the `@` that tells it from a port
        shown[-1] = _URL_CUT.sub(rb"\1" + HIDDEN, shown[-1])
    return b" ".join(shown)


def _shown(arguments: list[bytes]) -> Iterator[bytes]:
    hidden = False
    for argument in arguments:
        yield HIDDEN if hidden else _without_secrets(argument)
        # Also of a hidden one: the option before it may take no value.
        hidden = _NEXT.search(argument) is not None


def _without_secrets(argument: bytes) -> bytes:
    argument = _URL_PASSWORD.sub(rb"\1" + HIDDEN, argument)
    for found in _VALUE.finditer(argument):
        is_address = (
            found[0].endswith(b":") and _HOST.search(argument, 0, found.start()) and _PORT.match(argument, found.end())
        )
        if not is_address:
            return argument[: found.end()] + HIDDEN
    return argument
