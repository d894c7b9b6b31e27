"""Decodes what the kernel copied of one frame into its shape. Sans-IO; bad bytes give a status, never an exception.

Data of a request begins at the client id, of a response behind the correlation id. In the place of every record set
that is not empty stands a stub of 24 bytes, written by the kernel (see wire.STUB_FIELDS). The data may end anywhere:
the facts are those read before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from kafka_probe.protocol.compiler import Walk, compiled
from kafka_probe.protocol.facts import POSITIVE, Kind, Shape, Status
from kafka_probe.protocol.found import shape_of
from kafka_probe.protocol.plan import answered_version, plan_for

Walks = Callable[[bool, int, int], tuple[Walk, Status]]
"""From (response, API key, version) to a walk, and the status of a frame that it comes to the end of."""


def walks_for(kinds: Iterable[Kind] = Kind) -> Walks:
    """The walks over what leaves the kernel, for those who ask for no other measures."""
    asked = POSITIVE.union(kinds)

    @cache
    def walk_for(response: bool, api_key: int, api_version: int) -> tuple[Walk, Status]:
        plan = plan_for(response, api_key, api_version).only(asked)
        return compiled(plan.steps, asked), plan.done

    return walk_for


_ALL_WALKS = walks_for()


def decode(
    response: bool,
    api_key: int,
    api_version: int,
    data: bytes,
    *,
    copied_all: bool,
    walks: Walks = _ALL_WALKS,
) -> Shape:
    """The shape of a frame. `copied_all`: the data is all of the frame but its record sets, so that a field that ends
    beyond it is malformed; without it such a frame is truncated. Time and memory are bounded by the length of the data,
    see compiler.py."""
    version = answered_version(api_key, api_version, data) if response else api_version
    walk, status = walks(response, api_key, version)
    end = len(data)
    mask = bytearray(b"\xff" * end)
    at, place, malformed, found = walk(data, end, mask)
    stopped_at = None
    if place is not None:
        status = Status.MALFORMED if malformed or copied_all else Status.TRUNCATED
        stopped_at = place.field(end - at)
    if place is None or not place.decides:
        mask[at:] = bytes(end - at)
    return shape_of((response, api_key, api_version), status, stopped_at, found, mask, at)
