"""The root exception and its few kinds.

An exception here ends a command: its text is one sentence that says what happened, to what, and what to do.
What arrives from the wire or from a process is never an exception; it is a value with a status.
"""


class KafkaProbeError(Exception):
    """Something that ends the command. `exit_code` is the status of the process."""

    exit_code = 1


class StartError(KafkaProbeError):
    """The command could not start: privileges, kernel, packages, configuration of the host."""

    exit_code = 3


class UsageError(KafkaProbeError):
    """A flag, variable or configuration file that cannot be used."""

    exit_code = 2
