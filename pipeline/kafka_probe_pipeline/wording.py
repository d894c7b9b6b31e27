"""Wording: sentences of texts and of what is known of an end, as columns. This room never judges."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from kafka_probe_pipeline.evidence import SECOND_US, End, silence_us


def said(*parts: str | Column) -> Column:
    """A sentence of texts and values; what is not known is a question mark."""
    texts = (F.lit(part) if isinstance(part, str) else F.coalesce(part.cast("string"), F.lit("?")) for part in parts)
    return F.concat(*texts)


def seconds(microseconds: Column) -> Column:
    """A time as `12.3 s`."""
    return F.when(microseconds.isNotNull(), F.format_string("%.1f s", microseconds / SECOND_US))


def silence(end: End, of: str = "silence") -> Column:
    """How long the end was silent before it began to close, as `12.3 s of silence` or `12.3 s`."""
    return F.concat(seconds(silence_us(end)), F.lit(" of silence" if of == "silence" else ""))


def count(end: End, name: str) -> Column:
    """A count of the end's close, 0 where there is none."""
    return F.coalesce(end.close(name), F.lit(0))


def api(end: End) -> Column:
    """The API of the last request, where it can be read."""
    return F.coalesce(end.close("last_api"), F.lit("bytes that cannot be read"))


def process(end: End) -> Column:
    """The process that owned the end, as `java[7]`."""
    return F.concat(
        F.coalesce(end.fact("workload.comm"), F.lit("?")),
        F.lit("["),
        F.coalesce(end.fact("workload.pid").cast("string"), F.lit("?")),
        F.lit("]"),
    )
