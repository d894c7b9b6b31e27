"""Decodes what the kernel copied of one frame into its shape. Sans-IO; bad bytes give a status, never an exception.

Data of a request begins at the client id, of a response behind the correlation id. In the place of every record set
that is not empty stands a stub of 24 bytes, written by the kernel (see wire.STUB_FIELDS). The data may end anywhere:
the facts are those read before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from kafka_probe.protocol.collector import Collector
from kafka_probe.protocol.compiler import Walk, compiled
from kafka_probe.protocol.facts import Shape, Status
from kafka_probe.protocol.plan import answered_version, plan_for


@cache
def walk_for(response: bool, api_key: int, api_version: int) -> tuple[Walk, Status]:
    """The walk over what leaves of a version, and its status if it comes to its end."""
    plan = plan_for(response, api_key, api_version)
    return compiled(plan.steps), plan.done


def decode(
    response: bool,
    api_key: int,
    api_version: int,
    data: bytes,
    *,
    copied_all: bool,
    walks: Callable[[bool, int, int], tuple[Walk, Status]] = walk_for,
) -> Shape:
    """The shape of a frame. `copied_all`: the data is all of the frame but its record sets, so that a field that ends
    beyond it is malformed; without it such a frame is truncated. Time and memory are bounded by the length of the data,
    see compiler.py."""
    version = answered_version(api_key, api_version, data) if response else api_version
    walk, status = walks(response, api_key, version)
    found, mask, end = Collector(), bytearray(), len(data)
    at, place, malformed = walk(data, end, found, mask)
    stopped_at = None
    if place is not None:
        status = Status.MALFORMED if malformed or copied_all else Status.TRUNCATED
        stopped_at = place.field(end - at)
        if place.decides:
            mask += b"\xff" * (end - len(mask))
    facts = found.facts(response, api_key, api_version, status, stopped_at)
    return Shape(facts, bytes(mask.ljust(end, b"\0")), found.all_measures(), at)
