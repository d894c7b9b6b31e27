"""Finds the storm of a disconnect: idle disconnects for its cause, or the restart of its broker.

The tables do not list the disconnects of a storm. So a disconnect is compared with what is known of storms at its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import MAXYEAR, MINYEAR
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_probe_console.period import Period, local_time, written

if TYPE_CHECKING:
    from kafka_probe_console.tables import OpenTables

_IDLE, _RESTART = "idle_disconnects", "broker_restart"
_AROUND_US = 60_000_000  # a storm begins with the closes of a minute
_LONGER, _SLACK_US = 1.1, 2_000_000  # what the silences of one storm differ by, by default
_STOPS = ("broker_shutdown", "server"), ("process_exit", "server")


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
        """Return True if a disconnect was at its time, and is of its cause and silence or of its broker."""
        until_us = self.until_us or disconnect["ended"]
        if not self.since_us - _AROUND_US <= disconnect["ended"] <= until_us:
            return False
        if self.kind == _RESTART:
            is_stop = (disconnect["cause"], disconnect["by"]) in _STOPS
            return is_stop and bool(disconnect["broker"] == self.subject)
        silences_us = sorted((self.idle_us, round((disconnect["idle_s"] or 0) * 1e6)))
        is_near = silences_us[1] <= silences_us[0] * _LONGER + _SLACK_US
        return is_near and bool(disconnect["cause"] == self.subject)

    def __str__(self) -> str:
        until = f"until {written(self.until_us)}" if self.until_us else "not over yet"
        return f"{self.disconnects:,} such disconnects since {written(self.since_us)}, {until}: storm {self.id}"


def storms_at(tables: OpenTables, ended_us: Iterable[int]) -> list[KnownStorm]:
    """Return the storms of idle connections and of restarts of brokers that may have disconnects of these times."""
    times = sorted(time for time in map(local_time, ended_us) if time and MINYEAR < time.year < MAXYEAR)
    if not times or not tables.add("storms"):
        return []
    newest = "row_number() OVER (PARTITION BY id ORDER BY ts DESC, batch_id DESC) = 1"
    since = "coalesce(since_ts, opened_ts)"
    ask = f"""
        SELECT id, kind, subject, coalesce(idle_us, 0), epoch_us({since}), epoch_us(resolved_ts), count
        FROM (SELECT * FROM storms WHERE date >= ? AND kind IN (?, ?) QUALIFY {newest})
        WHERE {since} <= ?::TIMESTAMPTZ + INTERVAL 1 MINUTE ORDER BY {since} DESC
    """
    first_date, _ = Period(times[0]).dates
    return [KnownStorm(*row) for row in tables.rows(ask, [first_date, _IDLE, _RESTART, times[-1]])]


def storm_of(disconnect: Mapping[str, Any], storms: Iterable[KnownStorm]) -> str | None:
    """Return the storm that a disconnect may be part of, that of the nearest silence; None without one."""
    silence_us = (disconnect["idle_s"] or 0) * 1e6
    found = (storm for storm in storms if storm.has(disconnect))
    nearest = min(found, key=lambda storm: abs(storm.idle_us - silence_us), default=None)
    return nearest and str(nearest)
