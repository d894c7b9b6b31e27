"""Tables of rows by labels, with a bounded number of label sets; all others count under `other`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

OTHER = "other"
LABEL_BYTES = 64
"""Most bytes of the labels of a row in UTF-8, on average over the rows that a table may have."""
UNUSED_US = 2 * 3600 * 1_000_000
"""Time without requests after which the series of a label set end: longer than the pauses of an hourly job."""
_MINUTE_US = 60 * 1_000_000
_KEPT = 0.9  # part of the requests that is kept each minute, so that they count for ten minutes on average
_MORE = 2  # times as many requests as those of a row that gives way: else series would come and go

Labels = tuple[str, ...]
LabelRow = TypeVar("LabelRow")


@dataclass(slots=True)
class _Rank(Generic[LabelRow]):
    """A label set that may have a row. recent: its requests, of which a tenth is forgotten each minute."""

    label_bytes: int
    used_us: int
    row: LabelRow | None = None
    recent: float = 0.0


class LabelTable(Generic[LabelRow]):
    """Holds the rows of the label sets with most requests in ten minutes: at most `limit`, besides those of OTHER.

    Their labels have at most LABEL_BYTES on average, so a table of long labels has fewer rows. As many label sets again
    wait for a row. One of them gets the rows of those with fewest requests, and begins at 0, once it has more than
    twice as many as each of these. others: returns the labels of OTHER under which requests with some labels count;
    full: some counted there in the last interval because there was no row for them.
    """

    def __init__(self, make: Callable[[], LabelRow], others: Callable[[Labels], Labels], limit: int) -> None:
        self._make = make
        self._others_of = others
        self._limit = limit
        self._most_bytes = limit * LABEL_BYTES
        self._rows: dict[Labels, _Rank[LabelRow]] = {}
        self._waiting: dict[Labels, _Rank[LabelRow]] = {}
        self._row_bytes = self._waiting_bytes = 0
        self._others: dict[Labels, LabelRow] = defaultdict(make)
        self.full = self._overflows = False
        self._passed_us = self._minute_us = 0

    def row(self, labels: Labels, requests: float) -> LabelRow:
        """Return the row of the labels, or that of OTHER, and count the requests for their rank."""
        rank = self._rows.get(labels) or self._waiting.get(labels) or self._new(labels)
        if rank:
            rank.recent += requests
            rank.used_us = self._passed_us
            if rank.row:
                return rank.row
        others = self._others_of(labels)
        self._overflows |= others != labels
        return self._others[others]

    def end_interval(self, length_us: int) -> None:
        """Forget a tenth of the requests each minute, drop unused label sets, and give rows to the busiest."""
        self.full, self._overflows = self._overflows, False
        self._passed_us += length_us
        while self._passed_us - self._minute_us >= _MINUTE_US:
            self._minute_us += _MINUTE_US
            for rank in (*self._rows.values(), *self._waiting.values()):
                rank.recent *= _KEPT
        used_us = self._passed_us - UNUSED_US
        for labels in [labels for labels, rank in self._rows.items() if rank.used_us <= used_us]:
            self._take_row(labels)
        waiting = ((labels, rank) for labels, rank in self._waiting.items() if rank.used_us > used_us)
        busiest = sorted(waiting, key=lambda item: -item[1].recent)
        quietest = sorted(self._rows.items(), key=lambda item: item[1].recent)
        for labels, rank in busiest:
            self._replace(quietest, labels, rank)
        # Half of the space is for new ones, however many there are.
        kept = [item for item in busiest if not item[1].row][: max(1, self._limit // 2)]
        self._waiting, self._waiting_bytes = {}, 0
        for labels, rank in kept:
            if self._waiting_bytes + rank.label_bytes <= self._most_bytes // 2:
                self._wait(labels, rank)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Labels, LabelRow]]:
        yield from ((labels, rank.row) for labels, rank in self._rows.items() if rank.row)
        yield from self._others.items()

    def _new(self, labels: Labels) -> _Rank[LabelRow] | None:
        """Return the rank of new labels, with a row if one is free; None if there is no space."""
        rank = _Rank[LabelRow](sum(len(label.encode()) for label in labels), self._passed_us)
        if labels == self._others_of(labels):
            return None
        if len(self._rows) < self._limit and self._row_bytes + rank.label_bytes <= self._most_bytes:
            self._give_row(labels, rank)
            return rank
        if len(self._waiting) == self._limit or self._waiting_bytes + rank.label_bytes > self._most_bytes:
            return None
        self._wait(labels, rank)
        return rank

    def _replace(self, quietest: list[tuple[Labels, _Rank[LabelRow]]], labels: Labels, rank: _Rank[LabelRow]) -> None:
        """Give a waiting label set a free row, or the rows of others that have far fewer requests.

        quietest: the others that had rows before, those with fewest requests first; without those that give way.
        """
        size, needed_bytes, count = len(self._rows), self._row_bytes + rank.label_bytes - self._most_bytes, 0
        while size == self._limit or needed_bytes > 0:
            if count == len(quietest) or rank.recent <= _MORE * quietest[count][1].recent:
                return
            size, needed_bytes = size - 1, needed_bytes - quietest[count][1].label_bytes
            count += 1
        for other, _ in quietest[:count]:
            self._take_row(other)
        del quietest[:count]
        self._give_row(labels, rank)

    def _give_row(self, labels: Labels, rank: _Rank[LabelRow]) -> None:
        rank.row = self._make()
        self._rows[labels] = rank
        self._row_bytes += rank.label_bytes

    def _take_row(self, labels: Labels) -> None:
        self._row_bytes -= self._rows.pop(labels).label_bytes

    def _wait(self, labels: Labels, rank: _Rank[LabelRow]) -> None:
        self._waiting[labels] = rank
        self._waiting_bytes += rank.label_bytes
