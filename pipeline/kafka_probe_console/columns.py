"""The columns of answers."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """The kind of a column's values, which decides how they are compared and shown."""

    TEXT = auto()
    NUMBER = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class AnswerColumn:
    """A column of an answer. Units stand in its name."""

    name: str
    kind: Kind = Kind.TEXT


def columns(*names: str, numbers: Container[str] = (), times: Container[str] = ()) -> tuple[AnswerColumn, ...]:
    """Return columns by these names; numbers, times: the names of those that are no texts."""
    kinds = (Kind.NUMBER if name in numbers else Kind.TIME if name in times else Kind.TEXT for name in names)
    return tuple(map(AnswerColumn, names, kinds))
