"""Decodes what the kernel copied of one frame. Sans-IO; bad bytes give a status, never an exception.

Data of a request begins at the client id, of a response behind the correlation id. In the place of every record set
that is not empty stands a stub of 24 bytes, written by the kernel (see wire.STUB_FIELDS). The data may end anywhere:
the facts are those read before.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka_probe.protocol.decoded import Decoded
from kafka_probe.protocol.facts import POSITIVE, Facts, MeasureKind, Status
from kafka_probe.protocol.plan import answered_version, plan_for
from kafka_probe.protocol.reader_compiler import Reader, compiled


class Readers(dict[tuple[bool, int, int], tuple[Reader, Status]]):
    """Readers by (response, API key, version), each with the status of a frame that it read to the end.

    They return only the measures of the given kinds.
    """

    def __init__(self, kinds: Iterable[MeasureKind] = MeasureKind) -> None:
        self._asked = POSITIVE.union(kinds)

    def __missing__(self, which: tuple[bool, int, int]) -> tuple[Reader, Status]:
        plan = plan_for(*which).only(self._asked)
        reader = self[which] = compiled(plan.steps, self._asked), plan.done
        return reader


_ALL_READERS = Readers()
_new = tuple.__new__


def decode(
    response: bool,
    api_key: int,
    api_version: int,
    data: bytes,
    *,
    copied_all: bool,
    readers: Readers = _ALL_READERS,
) -> Decoded:
    """What a frame says. `copied_all`: the data is all of the frame but its record sets, so that a field that ends
    beyond it is malformed; without it such a frame is truncated. Time and memory are bounded by the length of the data,
    see reader_compiler.py."""
    version = answered_version(api_key, api_version, data) if response else api_version
    reader, status = readers[response, api_key, version]
    end = len(data)
    at, place, malformed, said, located, skipped = reader(data, end)
    stopped_at = None
    if place is not None:
        status = Status.MALFORMED if malformed or copied_all else Status.TRUNCATED
        stopped_at = place.field(end - at)
    if place is None or not place.decides:
        skipped.append((at, end))
    facts = _new(Facts, (response, api_key, api_version, status, stopped_at, *said))
    return _new(Decoded, (facts, end, at, located, skipped))
