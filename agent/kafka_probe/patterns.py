"""Decides whether connections match the conditions of a user, with patterns as in shells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from kafka_probe.setting_types import ArchiveFilter


class ConnectionNames(NamedTuple):
    """The names by which users choose a connection.

    ends: addresses with ports; ids: its conn_id and flow_id; owner: returns the names of the workload.
    """

    client_id: str | None
    pid: int | None
    ends: tuple[str | None, str | None]
    ids: tuple[str | None, str | None]
    owner: Callable[[], Iterable[str | None]]


def matches(pattern: str, *names: str | None) -> bool:
    """Return True if one of the names matches the pattern, or if the pattern is empty."""
    return not pattern or any(name is not None and fnmatchcase(name, pattern) for name in names)


def matches_connection(wanted: ArchiveFilter, names: ConnectionNames) -> bool:
    """Return True if a connection meets all conditions on connections. Topic and API are conditions on frames."""
    return (
        matches(wanted.client, names.client_id)
        and wanted.pid in ("", str(names.pid))
        and (not wanted.connection or wanted.connection in names.ids)
        and (not wanted.address or any(end and _has_address(end, wanted.address) for end in names.ends))
        and (not wanted.workload or matches(wanted.workload, *names.owner()))
    )


def _has_address(end: str, address: str) -> bool:
    """Return True if an end, such as `[::1]:9092`, has the address, which may lack the port."""
    host = end.rpartition(":")[0]
    return address in (end, host, host.strip("[]"))
