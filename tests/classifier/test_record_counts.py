"""A batch's count of records is accepted only if the batch's bytes can contain that many records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_probe.capture.sample import Flag, SampleKind
from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.facts import MeasureKind as Measured
from kafka_probe.protocol.facts import SetStatus, measure_values
from tests.builders.wire import METADATA, PRODUCE, Set, batch, produce, request, response
from tests.lab.classifier import Classifier, Direction, classifier

WHOLE = 1 << 20
AT_COUNT, AT_MAGIC, AT_ATTRIBUTES = 57, 16, 22
BATCH_HEADER = 61
GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
SHORTEST = b"\x0c" + bytes(6)  # a record of no key, value or header


@pytest.fixture(scope="module")
def cursor() -> Iterator[Classifier]:
    with classifier(any_port=False) as found:
        yield found


def claiming(count: int, *, body: bytes = b"", codec: int = 0, magic: int = 2) -> bytes:
    """Return a record batch whose header claims this number of records."""
    made = bytearray(batch(1)[:BATCH_HEADER] + body)
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[AT_MAGIC], made[AT_ATTRIBUTES] = magic, codec
    made[AT_COUNT:BATCH_HEADER] = count.to_bytes(4, "big", signed=True)
    return bytes(made)


def produced(cursor: Classifier, version: int, records: bytes) -> tuple[SetStatus, dict[Measured, int]]:
    """Send records; return the status and the measures of their record set."""
    cursor.connect(server_side=True)
    cursor.move(Direction.RECEIVE, request(METADATA, 12, 1).wire, WHOLE)
    cursor.move(Direction.SEND, response(METADATA, 12, 1).wire, WHOLE)
    cursor.move(Direction.RECEIVE, produce(version, {"orders": {0: Set(records, None)}}, correlation_id=2).wire, WHOLE)
    (sample,) = (each for each in cursor.samples() if each["kind"] == SampleKind.FRAME and each["correlation_id"] == 2)
    data = sample["data"][: sample["size"]].tobytes()
    shape = decode(False, PRODUCE, version, data, copied_all=not sample["flags"] & Flag.CUT).shape()
    found = dict(zip((measure.kind for measure in shape.measures), measure_values(shape, data), strict=True))
    (record_set,) = shape.facts.record_sets
    return SetStatus(record_set.status), found


def counted(cursor: Classifier, version: int, records: bytes) -> tuple[SetStatus, int | None, int]:
    """Send records; return the status and count of their record set, and the number of batches counted as a loss."""
    before = cursor.losses().get("record_count", 0)
    status, found = produced(cursor, version, records)
    return status, found.get(Measured.RECORDS), cursor.losses().get("record_count", 0) - before


def at_offset(offset: int, made: bytes) -> bytes:
    """Return a batch or message with another first offset."""
    return offset.to_bytes(8, "big") + made[8:]


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize(
    "records",
    [
        claiming(-1000),
        claiming(2**31 - 1),
        claiming(-(2**31), body=bytes(700)),
        claiming(1),
        claiming(3, body=SHORTEST * 2),
        claiming(2, body=SHORTEST * 2, magic=3),
        claiming(7 * 1032 // 7 + 1, body=bytes(7), codec=GZIP),
        claiming(22, body=bytes(7), codec=SNAPPY),
        claiming(256, body=bytes(7), codec=LZ4),
        claiming(2**31 - 1, body=bytes(7), codec=ZSTD),
    ],
)
def test_a_count_that_cannot_be_is_unknown(cursor: Classifier, version: int, records: bytes) -> None:
    assert counted(cursor, version, records) == (SetStatus.IMPLAUSIBLE, None, 1)


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (claiming(0), 0),
        (claiming(2, body=SHORTEST * 2), 2),
        (claiming(1000, body=bytes(30), codec=GZIP), 1000),
        (batch(500, codec=GZIP, value=b""), 500),
        (batch(1, value=b""), 1),
    ],
)
def test_a_count_that_can_be_is_believed(cursor: Classifier, records: bytes, count: int) -> None:
    assert counted(cursor, 9, records) == (SetStatus.COUNTED, count, 0)


def test_batches_behind_a_wrong_count_change_nothing(cursor: Classifier) -> None:
    wrong = claiming(2**31 - 1)
    assert counted(cursor, 9, batch(3) + wrong + batch(3)) == (SetStatus.IMPLAUSIBLE, None, 1)
    assert counted(cursor, 9, wrong + batch(3)[:-1]) == (SetStatus.IMPLAUSIBLE, None, 1)


def test_counts_that_overflow_together_are_unknown(cursor: Classifier) -> None:
    large = claiming(2**31 - 1, body=bytes(460_000), codec=ZSTD)
    assert counted(cursor, 9, large) == (SetStatus.COUNTED, 2**31 - 1, 0)
    assert counted(cursor, 9, large * 2) == (SetStatus.IMPLAUSIBLE, None, 1)


@pytest.mark.parametrize(("magic", "least"), [(0, 26), (1, 34)])
def test_messages_shorter_than_their_fields_are_unknown(cursor: Classifier, magic: int, least: int) -> None:
    def message(size: int) -> bytes:
        return bytes(8) + (size - 12).to_bytes(4, "big") + bytes(4) + bytes([magic]) + bytes(size - 17)

    assert counted(cursor, 3, message(least) * 2) == (SetStatus.COUNTED, 2, 0)
    assert counted(cursor, 3, message(least) + message(least - 1)) == (SetStatus.IMPLAUSIBLE, None, 1)


def test_a_correlation_id_may_be_negative(cursor: Classifier) -> None:
    cursor.connect(server_side=True)
    cursor.move(Direction.RECEIVE, request(METADATA, 12, -1).wire, WHOLE)
    cursor.move(Direction.SEND, response(METADATA, 12, -1).wire, WHOLE)
    frames = [each for each in cursor.samples() if each["kind"] == SampleKind.FRAME]
    assert {int(each["correlation_id"]) for each in frames} == {-1}
    assert frames[1]["api_key"] == METADATA


HIGH = 1 << 40
FIRST, SECOND = at_offset(HIGH + 7, batch(3)), at_offset(HIGH + 10, batch(2))


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize(
    ("records", "offsets"),
    [
        (FIRST, (HIGH + 7, HIGH + 9)),
        (FIRST + SECOND, (HIGH + 7, HIGH + 11)),
        (FIRST + SECOND[:-1], (HIGH + 7, HIGH + 9)),
        (FIRST + claiming(2**31 - 1), (HIGH + 7, 0)),
        (at_offset(5, batch(1, magic=1)) + at_offset(HIGH, batch(1, magic=0)), (5, HIGH)),
        (at_offset(HIGH, batch(4, magic=1, codec=GZIP)), (HIGH, HIGH)),
    ],
)
def test_offsets_are_those_of_the_first_and_the_last_batch_that_was_read(
    cursor: Classifier, version: int, records: bytes, offsets: tuple[int, int]
) -> None:
    _, found = produced(cursor, version, records)
    assert (found[Measured.BATCH_FIRST_OFFSET], found[Measured.BATCH_LAST_OFFSET]) == offsets
