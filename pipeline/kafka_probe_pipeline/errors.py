"""What ends the command: one root exception with the exit status of the process.

What arrives in the events topic is never an exception; it is a row with a reason.
"""

from __future__ import annotations


class PipelineError(Exception):
    """Something that ends the command. `exit_code` is the status of the process."""

    exit_code = 1


class StartError(PipelineError):
    """The job could not start: broker, connector, Java, output directory."""

    exit_code = 3


class AwayError(PipelineError):
    """The brokers did not answer in time; they may later."""


class UsageError(PipelineError):
    """A flag or variable that cannot be used."""

    exit_code = 2
