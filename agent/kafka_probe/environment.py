"""Finds environment variables that have the settings' prefix but name no setting: refuses misspelt ones, lists others.

Kubernetes sets such variables in the pods beside a Service whose name begins with `kafka-probe`; those of the pipeline
begin with KAFKA_PROBE_PIPELINE_. Neither is refused. This module never parses settings.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from kafka_probe.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Kubernetes sets KAFKA_PROBE_PORT to a URL such as tcp://...; with another value it is a misspelt KAFKA_PROBE_PORTS.
_OF_KUBERNETES = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*|\w+_PORT=(tcp|udp|sctp)://.*",
    re.DOTALL,
)
_OF_THE_PIPELINE = "KAFKA_PROBE_PIPELINE_"
# Least similarity (difflib) of a misspelt name: PROTS passes for PORTS. A wrong match prevents the agent from starting.
_NEAR = 0.75


def unknown_variables(environment: Mapping[str, str], prefix: str, known: Collection[str]) -> dict[str, str]:
    """Return the non-empty variables with the prefix that are not known, nor of Kubernetes or the pipeline.

    Each has the most similar known name, however little it resembles that.

    Raises:
        UsageError: a variable is almost a known name; its setting would be ignored.
    """
    unknown, names = {}, [one[len(prefix) :] for one in known]
    for name, value in environment.items():
        written = name.upper()
        if written in known or not written.startswith(prefix) or written.startswith(_OF_THE_PIPELINE) or not value:
            continue
        if _OF_KUBERNETES.fullmatch(f"{written}={value}"):
            continue
        if near := difflib.get_close_matches(written[len(prefix) :], names, 1, _NEAR):
            raise UsageError(f"Unknown variable {name}: did you mean {prefix}{near[0]}?")
        unknown[name] = prefix + difflib.get_close_matches(written[len(prefix) :], names, 1, 0.0)[0]
    return unknown
