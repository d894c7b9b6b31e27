"""Checks that this release can read the files of another one."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import types as T

from kafka_probe.errors import StartError

ANOTHER_OUTPUT = "Choose another --output, and another --checkpoint-dir if it is set."


def require_types(path: str, known: T.StructType, own: T.StructType) -> None:
    """Raise StartError if a column of the files has another type than this release gives it."""
    if conflicts := [*_conflicts(known, own)]:
        raise StartError(
            f"{path} has columns of other types, written by another release: {', '.join(conflicts)}. {ANOTHER_OUTPUT}"
        )


def _conflicts(known: T.DataType, own: T.DataType, name: str = "") -> Iterator[str]:
    """Yield the names of columns that are in both, with different types; `a.b`: of a column in a column."""
    match known, own:
        case T.StructType(), T.StructType():
            for field in own:
                if field.name in known.names:
                    inner = f"{name}.{field.name}" if name else field.name
                    yield from _conflicts(known[field.name].dataType, field.dataType, inner)
        case T.ArrayType(), T.ArrayType():
            yield from _conflicts(known.elementType, own.elementType, name)
        case T.MapType(), T.MapType():
            yield from _conflicts(known.keyType, own.keyType, name)
            yield from _conflicts(known.valueType, own.valueType, name)
        case _ if known != own:
            yield name
