"""Times on the command line: ages as `90s`, `15m`, `2h` and `7d`, times of day as `14:03`, or ISO 8601.

Times without a zone are local.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from kafka_probe.errors import UsageError

_DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)
_AROUND = timedelta(minutes=5)
_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Period:
    """A time from `begin` to before `end`, both in UTC; None: without a limit."""

    begin: datetime | None = None
    end: datetime | None = None

    @property
    def dates(self) -> tuple[date | None, date | None]:
        """Return the first and the last date in UTC, a day more at each end: clocks differ."""
        first = moved(self.begin, -_DAY).date() if self.begin else None
        last = moved(self.end, _DAY).date() if self.end else None
        return first, last


def local_time(ts_us: int, zone: tzinfo | None = None) -> datetime | None:
    """Return a time given as µs since epoch; None if it is beyond the calendar. zone: by default the local one."""
    try:
        return datetime.fromtimestamp(ts_us / 1e6, UTC).astimezone(zone)
    except (OverflowError, ValueError):
        return None


def written(ts_us: int) -> str:
    """Return a local time for a sentence."""
    local = local_time(ts_us)
    return local.isoformat(" ", "seconds") if local else f"{ts_us} µs since 1970"


def age(text: str) -> timedelta:
    """Return the duration that a text names.

    Raises:
        UsageError: it is none.
    """
    if found := _AGE.fullmatch(text.strip()):
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    raise UsageError(f"{text!r} is not an age: give one such as 90s, 15m, 2h or 7d.")


def moment(text: str, now: datetime) -> datetime:
    """Return the time that a text names, in UTC; `now` has a zone.

    Raises:
        UsageError: it is none.
    """
    try:
        if _AGE.fullmatch(text.strip()):
            return now.astimezone(UTC) - age(text)
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text.strip()):
            return _last(time.fromisoformat(text.strip()), now)
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is no time: give an age such as 90s, 15m, 2h or 7d, a time of day such as 14:03, or ISO 8601 "
            "such as 2026-01-31T14:03."
        ) from None


def _last(of_day: time, now: datetime) -> datetime:
    """Return when it was this local time of day last, in UTC.

    On a day on which clocks are set back it may be twice.
    """
    today = now.astimezone().date()
    times = of_day.replace(fold=1), of_day
    moments = (datetime.combine(day, one).astimezone(UTC) for day in (today, today - _DAY) for one in times)
    return max(moment for moment in moments if moment <= now)


def around(text: str, now: datetime) -> Period:
    """Return five minutes before and after the time that a text names.

    Raises:
        UsageError: it is none.
    """
    at = moment(text, now)
    return Period(moved(at, -_AROUND), moved(at, _AROUND))


def hour_from(text: str, now: datetime) -> Period:
    """Return the hour from the time on that a text names, or what has passed of it.

    Raises:
        UsageError: it is no time, or in the future.
    """
    at = moment(text, now)
    if at >= now:
        raise UsageError(f"{text} is in the future.")
    return Period(at, min(moved(at, _HOUR), now.astimezone(UTC)))


def moved(time: datetime, by: timedelta) -> datetime:
    """Return a later or earlier time.

    Raises:
        UsageError: it is beyond the calendar.
    """
    try:
        return time + by
    except OverflowError:
        raise UsageError("Give times between the years 1 and 9999.") from None


def period(since: str | None, begin: str | None, end: str | None, now: datetime) -> Period:
    """Return the period of `--since`, or of `--from` and `--until`.

    Raises:
        UsageError: a text is no time, both forms are used, or the period is empty.
    """
    if since and begin:
        raise UsageError("Use --since or --from, not both.")
    first = moment(since or begin or "", now) if since or begin else None
    last = moment(end, now) if end else None
    if first and last and first >= last:
        raise UsageError(f"--until must be after --from: {last.isoformat()} is not after {first.isoformat()}.")
    return Period(first, last)
