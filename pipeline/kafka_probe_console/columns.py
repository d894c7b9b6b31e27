"""The columns of answers."""

from __future__ import annotations

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
