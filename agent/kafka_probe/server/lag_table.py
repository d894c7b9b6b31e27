"""The lags of groups that have series of their own; all others count under `other`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kafka_probe.connections.offsets import GroupLag
from kafka_probe.server.label_tables import LABEL_BYTES, OTHER, Labels
from kafka_probe.text import printable

_LABELS = 3  # cluster, group and topic
_OTHERS = (OTHER,) * _LABELS


class LagTable:
    """Holds the largest lags: at most `limit`, with labels of LABEL_BYTES on average, besides those of OTHER.

    One that has a series keeps it as long as the group is behind. full: there are lags of OTHER.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: dict[Labels, GroupLag] = {}
        self._others: GroupLag | None = None

    def update(self, lags: Iterable[GroupLag]) -> None:
        """Replace all lags by those at the end of an interval."""
        found: dict[Labels, GroupLag] = {}
        for lag in lags:
            labels = tuple(map(printable, lag[:_LABELS]))
            found[labels] = lag.plus(found[labels]) if labels in found else lag  # two names may be one text
        before, self._rows, self._others = self._rows, {}, None
        free_bytes = self._limit * LABEL_BYTES
        for labels, lag in sorted(found.items(), key=lambda item: _rank(item[1], kept=item[0] in before)):
            size = sum(len(label.encode()) for label in labels)
            if len(self._rows) < self._limit and size <= free_bytes and labels != _OTHERS:
                self._rows[labels] = lag
                free_bytes -= size
            else:
                self._others = lag.plus(self._others) if self._others else lag

    @property
    def full(self) -> bool:
        return self._others is not None

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Labels, GroupLag]]:
        yield from self._rows.items()
        if self._others:
            yield _OTHERS, self._others


def _rank(lag: GroupLag, *, kept: bool) -> tuple[bool, int, bool]:
    """Return what lags are sorted by. kept: the lag has a series already."""
    return not (kept and lag.total), -lag.total, not kept
