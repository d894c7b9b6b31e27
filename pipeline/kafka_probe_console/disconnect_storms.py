"""Finds the storm of a disconnect: idle disconnects, the restart of its broker, crashes or reconnects of its workload.

The tables do not list the disconnects of a storm. So a disconnect is compared with what is known of storms at its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import MAXYEAR, MINYEAR
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_probe_console.period import Period, local_time, written

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_AROUND_US = 60_000_000  # a storm begins with the closes of a minute
_LONGER, _SLACK_US = 1.1, 2_000_000  # what the silences of one storm differ by, by default
_BRIEF_US = 60_000_000  # by default reconnects are of connections that ended within a minute
_STOPS = ("broker_shutdown", "server"), ("process_exit", "server")
_EXIT = ("process_exit", "client")


class KnownStorm(NamedTuple):
    """The last state of a storm. until_us: None while it is active."""

    id: str
    kind: str
    subject: str
    idle_us: int
    since_us: int
    until_us: int | None
    disconnects: int

    def has(self, disconnect: Mapping[str, Any]) -> bool:
        """Return True if a disconnect fits the storm: its time, and its cause and silence, broker or workload."""
        until_us = self.until_us or disconnect["ended"]
        if not self.since_us - _AROUND_US <= disconnect["ended"] <= until_us:
            return False
        ending = (disconnect["cause"], disconnect["by"])
        match self.kind:
            case "broker_restart":
                return ending in _STOPS and bool(disconnect["broker"] == self.subject)
            case "client_crash_loop":
                return ending == _EXIT and self._is_of_workload(disconnect)
            case "reconnects":
                lasted_us = disconnect["ended"] - (disconnect["opened"] or 0)
                return ending not in (_EXIT, *_STOPS) and lasted_us <= _BRIEF_US and self._is_of_workload(disconnect)
            case "idle_disconnects":
                shorter_us, longer_us = sorted((self.idle_us, round((disconnect["idle_s"] or 0) * 1e6)))
                return longer_us <= shorter_us * _LONGER + _SLACK_US and bool(disconnect["cause"] == self.subject)
        return False

    def _is_of_workload(self, disconnect: Mapping[str, Any]) -> bool:
        """Return True if its subject is the client's workload, as `java team/orders-7f` or `behind 10.57.2.2`."""
        command, _, _ = (disconnect["process"] or "").rpartition("[")
        if not command:
            return self.subject == f"behind {(disconnect['seen_as'] or '').rpartition(':')[0]}"
        place = disconnect["workload"]
        is_there = place in (None, command) or self.subject.endswith(place)
        return is_there and f"{self.subject} ".startswith(f"{command} ")

    def __str__(self) -> str:
        until = f"until {written(self.until_us)}" if self.until_us else "not over yet"
        return f"{self.disconnects:,} such disconnects since {written(self.since_us)}, {until}: storm {self.id}"


def storms_at(tables: OpenTables, ended_us: Iterable[int]) -> list[KnownStorm]:
    """Return the storms that may have disconnects of these times."""
    times = sorted(time for time in map(local_time, ended_us) if time and MINYEAR < time.year < MAXYEAR)
    if not times or not tables.add("storms"):
        return []
    newest = "row_number() OVER (PARTITION BY id ORDER BY ts DESC, batch_id DESC) = 1"
    since = "coalesce(since_ts, opened_ts)"
    ask = f"""
        SELECT id, kind, coalesce(subject, ''), coalesce(idle_us, 0), epoch_us({since}), epoch_us(resolved_ts), count
        FROM (SELECT * FROM storms WHERE date >= ? QUALIFY {newest})
        WHERE {since} <= ?::TIMESTAMPTZ + INTERVAL 1 MINUTE ORDER BY {since} DESC
    """
    first_date, _ = Period(times[0]).dates
    return [KnownStorm(*row) for row in tables.rows(ask, [first_date, times[-1]])]


def storm_of(disconnect: Mapping[str, Any], storms: Iterable[KnownStorm]) -> str | None:
    """Return the storm that a disconnect may be part of, that of the nearest silence; None without one."""
    silence_us = (disconnect["idle_s"] or 0) * 1e6
    found = (storm for storm in storms if storm.has(disconnect))
    nearest = min(found, key=lambda storm: abs(storm.idle_us - silence_us), default=None)
    return nearest and str(nearest)
