"""The root exception of both packages, and those that both raise.

These exceptions end a command. Their text is one sentence: what happened, to what, and what to do. Data from the wire
or from a process never raises one; it becomes a value with a status.
"""


class KafkaProbeError(Exception):
    """An error that ends the command. `exit_code` is the exit status of the process."""

    exit_code = 1


class StartError(KafkaProbeError):
    """The command cannot start: privileges, kernel, packages, brokers, Java or output do not allow it."""

    exit_code = 3


class UsageError(KafkaProbeError):
    """A flag, variable or configuration file is not valid."""

    exit_code = 2
