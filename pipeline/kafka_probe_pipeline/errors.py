"""What ends the command: one root exception with the exit status of the process.

What arrives in the events topic is never an exception; it is a row with a reason.
"""

from __future__ import annotations

import re


class PipelineError(Exception):
    """Something that ends the command. `exit_code` is the status of the process."""

    exit_code = 1


class StartError(PipelineError):
    """The job could not start: broker, connector, Java, output directory."""

    exit_code = 3


class AwayError(PipelineError):
    """The brokers did not answer in time; they may later."""


class OutputError(PipelineError):
    """The output cannot be accessed, or does not keep what is written to it."""


class TakenOverError(PipelineError):
    """Another job has taken over the output. Do not start this one again."""

    exit_code = 4


class UsageError(PipelineError):
    """A flag or variable that cannot be used."""

    exit_code = 2


def last_cause(error: Exception) -> str:
    """Return the innermost message of Spark's stack traces, of Java inside of Python, in one line."""
    causes = re.findall(r"^(?:Caused by: |: )?[\w.$]+(?:Error|Exception): (.+)$", str(error), re.MULTILINE)
    return causes[-1] if causes else str(error).splitlines()[0]
