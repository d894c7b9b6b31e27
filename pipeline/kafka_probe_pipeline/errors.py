"""Exceptions that only the pipeline raises; it shares the others with the agent.

What arrives in the events topic is never an exception; it is a row with a reason.
"""

from __future__ import annotations

import re

from kafka_probe.errors import KafkaProbeError


class AwayError(KafkaProbeError):
    """The brokers did not answer in time; they may later."""


class OutputError(KafkaProbeError):
    """The output cannot be accessed, or does not keep what is written to it."""


class TakenOverError(KafkaProbeError):
    """Another job has taken over the output. Do not start this one again."""

    exit_code = 4


def last_cause(error: Exception) -> str:
    """Return the innermost message of Spark's stack traces, of Java inside of Python, in one line.

    It begins with the class if that is one of Python's own, such as KeyError, whose message means little alone.
    """
    causes = re.findall(r"^(?:Caused by: |: )?([\w.$]+(?:Error|Exception)): (.+)$", str(error), re.MULTILINE)
    if not causes:
        return str(error).splitlines()[0]
    kind, message = causes[-1]
    return message if "." in kind else f"{kind}: {message}"
