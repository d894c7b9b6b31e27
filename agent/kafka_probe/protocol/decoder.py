"""Decodes the data that the kernel copied of one frame. Does no I/O; invalid bytes give a status, never an exception.

The data of a request begins at the client id, that of a response behind the correlation id. The kernel replaces every
record set that is not empty by a stub of 40 bytes (see wire.STUB_FIELDS). Of opaque bytes and of HIDDEN strings it
copies the length only. The data may end anywhere: the facts are those read before its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka_probe.protocol.decoded import Decoded
from kafka_probe.protocol.facts import POSITIVE, Facts, MeasureKind, Status
from kafka_probe.protocol.kernel_allow_list import HIDDEN
from kafka_probe.protocol.plan import answered_version, plan_for
from kafka_probe.protocol.reader_compiler import Reader, compiled


class Readers(dict[tuple[bool, int, int], tuple[Reader, Status]]):
    """Readers by (response, API key, version), each with the status of a frame that it read to the end.

    The readers return only measures of the given kinds and of POSITIVE. hidden: strings of which only the length was
    copied, as HIDDEN of kernel_allow_list.py.
    """

    def __init__(
        self, kinds: Iterable[MeasureKind] = MeasureKind, hidden: Mapping[str, frozenset[str]] = HIDDEN
    ) -> None:
        self._kinds = POSITIVE.union(kinds)
        self._hidden = hidden

    def __missing__(self, which: tuple[bool, int, int]) -> tuple[Reader, Status]:
        plan = plan_for(*which, self._hidden).only(self._kinds)
        reader = self[which] = compiled(plan.steps, self._kinds), plan.done
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
    """Return the facts of a frame and the location of its measures.

    copied_all: the data is the whole frame, except what the rules keep back. A field that ends beyond the data makes
    such a frame malformed, and any other frame truncated. The length of the data bounds time and memory, see
    reader_compiler.py.
    """
    version = answered_version(api_key, api_version, data) if response else api_version
    reader, status = readers[response, api_key, version]
    end = len(data)
    at, position, malformed, contents, located, skipped = reader(data, end)
    stopped_at = None
    if position is not None:
        status = Status.MALFORMED if malformed or copied_all else Status.TRUNCATED
        stopped_at = position.field(end - at)
    if position is None or not position.decides:
        skipped.append((at, end))
    facts = _new(Facts, (response, api_key, api_version, status, stopped_at, *contents))
    return _new(Decoded, (facts, end, at, located, skipped))
