"""Latency buckets, which all agents share, so that their counts can be added.

Bucket i covers (2**(i/8), 2**((i+1)/8)] seconds, so i is negative below one second. Its middle differs by at most 4.4 %
from each value in it. It is index i of OpenTelemetry's exponential histograms at scale 3, and index i + 1 of
Prometheus' native histograms of schema 3.
"""

from __future__ import annotations

import math

BUCKETS_PER_DOUBLING = 8
_US_PER_S = 1_000_000


def bucket_of(latency_us: float) -> int:
    """Return the bucket of a latency in µs; less than 1 µs counts as 1 µs."""
    return math.ceil(math.log2(max(latency_us, 1.0) / _US_PER_S) * BUCKETS_PER_DOUBLING) - 1


def bucket_middle_us(bucket: int) -> float:
    """Return the middle of a bucket in µs, within 4.4 % of every value in it."""
    upper: float = 2 ** ((bucket + 1) / BUCKETS_PER_DOUBLING)
    return 2 * _US_PER_S * upper / (2 ** (1 / BUCKETS_PER_DOUBLING) + 1)
