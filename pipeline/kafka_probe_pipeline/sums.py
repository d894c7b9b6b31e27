"""Sums of counts that neither wrap nor look whole after an overflow.

A sum of more than 63 bits is `OVERFLOWED`, and stays so whatever is added to it later: the tables keep it, readers get
null. Null in a table is a count that nobody knows, and adds nothing.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

OVERFLOWED = 2**63 - 1


def total(name: str) -> Column:
    """Return the aggregate sum of a column, which may have numbers below 0; null where no row has one."""
    most = F.max(name)
    return F.when(most < OVERFLOWED, F.coalesce(F.try_sum(name), F.lit(OVERFLOWED))).otherwise(most)


def plus(one: Column, other: Column) -> Column:
    """Return the sum of two counts, neither of them below 0."""
    none = F.lit(0)
    return F.coalesce(F.try_add(F.coalesce(one, none), F.coalesce(other, none)), F.lit(OVERFLOWED))


def shown(count: Column) -> Column:
    """Return the count for a reader: null if it is `OVERFLOWED`."""
    return F.nullif(count, F.lit(OVERFLOWED))
