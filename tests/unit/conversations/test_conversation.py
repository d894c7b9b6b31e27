"""Frames become lines: which answer belongs to which request, and how long lists are shortened."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import pytest

from kafka_probe.conversations import copied_frames as module
from kafka_probe.conversations.conversation import lines
from kafka_probe.conversations.copied_frames import (
    MORE,
    NO_API,
    RESPONSE,
    RESYNC,
    CopiedFrame,
    CopiedSample,
    Joiner,
    joined,
)
from kafka_probe.conversations.wording import words
from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.kernel_allow_list import rules_hash
from tests.builders.messages import CLIENT_ID
from tests.builders.trees import Records, message_of

HEARTBEAT = ApiKey.HEARTBEAT
REQUEST = message_of("Heartbeat", False, 0, {"ClientId": CLIENT_ID, "GroupId": "billing", "MemberId": "m-1"}).data
_ns = count(1)


def sample(
    correlation_id: int, data: bytes, flags: int = 0, *, part: int = 0, conn: str = "1", api_key: int = HEARTBEAT
) -> CopiedSample:
    origin = (1_000_000, "node-1", "agent", conn, "flow", rules_hash(), "client")
    return CopiedSample(*origin, next(_ns), 7, 60, correlation_id, 1500, api_key, 0, flags, part, data)


def answer(correlation_id: int, error: int = 0, **of: int) -> CopiedSample:
    return sample(correlation_id, error.to_bytes(2, "big"), RESPONSE, **of)  # type: ignore[arg-type]


def text(samples: Iterable[CopiedSample]) -> list[str]:
    return [line.partition("  ")[2].strip() for line in lines(joined(samples))]


def test_answers_with_equal_ids_belong_to_the_requests_in_their_order() -> None:
    first, ok, second, refused = text([sample(0, REQUEST), sample(0, REQUEST), answer(0), answer(0, 25)])
    assert first == second == "Heartbeat 0 #0, 60 bytes: group billing, generation 0, member id m-1"
    assert ok == "response after 1.5 ms, 60 bytes"
    assert refused == "response after 1.5 ms, 60 bytes: UNKNOWN_MEMBER_ID"


def test_a_request_that_was_skipped_has_no_answer() -> None:
    assert [line.partition(",")[0] for line in text([sample(1, REQUEST), sample(2, REQUEST), answer(2)])] == [
        "Heartbeat 0 #1",
        "no response seen",
        "Heartbeat 0 #2",
        "response after 1.5 ms",
    ]


def test_a_request_whose_last_sample_is_missing_has_its_answer() -> None:
    request, *rest = text([sample(1, REQUEST[:14], MORE), answer(1), sample(2, REQUEST), answer(2)])
    assert request.startswith("Heartbeat 0 #1, 60 bytes: a part of the frame is missing")
    assert rest[0] == "response after 1.5 ms, 60 bytes"
    assert len(rest) == 3


def test_an_answer_does_not_end_a_later_request_that_has_begun() -> None:
    asked, took, later, took_later = text(
        [sample(1, REQUEST), sample(2, REQUEST[:14], MORE), answer(1), sample(2, REQUEST[14:], part=1), answer(2)]
    )
    assert later == asked.replace("#1", "#2")
    assert took == took_later


def test_frames_that_were_skipped_before_a_frame_are_mentioned() -> None:
    asked, _ = text([sample(1, REQUEST, RESYNC), answer(1)])
    assert asked.startswith("Heartbeat 0 #1, 60 bytes: earlier frames were not captured")


def test_a_record_set_has_its_offsets() -> None:
    sets = Records(bytes(600), first_offset=7, last_offset=46), Records(bytes(90), first_offset=-1, last_offset=-1)
    partitions = [{"Index": index, "Records": records} for index, records in enumerate(sets)]
    tree = {"ClientId": CLIENT_ID, "Acks": 1, "TopicData": [{"Name": "orders", "PartitionData": partitions}]}
    asked, _ = text([sample(1, message_of("Produce", False, 0, tree).data, api_key=ApiKey.PRODUCE)])
    assert "orders[0]: records 40, offsets 7 to 46, 600 bytes of records" in asked
    assert "orders[1]: records 40, 90 bytes of records" in asked


def test_an_answer_whose_request_was_not_seen_is_named_so() -> None:
    (line,) = text([answer(5, api_key=NO_API)])
    assert line.startswith("response to a request that was not seen, #5, 60 bytes")


def test_unfinished_frames_beyond_the_bound_end_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNFINISHED_BYTES", 2 * 1100)
    joiner, ended = Joiner(), list[CopiedFrame]()
    for number in range(4):
        ended += joiner.add(sample(number, b"x" * 40, MORE, conn=str(number)))
    assert [(frame.first.conn_id, frame.whole) for frame in ended] == [("0", False), ("1", False)]
    assert [frame.first.conn_id for frame in joiner.rest()] == ["2", "3"]
    assert joiner._held_bytes == 0


@pytest.mark.parametrize(("verbose", "shown"), [(False, 8), (True, 256)])
def test_long_lists_are_shortened_and_counted(verbose: bool, shown: int) -> None:
    tree = {"ClientId": CLIENT_ID, "GroupId": "g", "Topics": [{"Name": "t", "PartitionIndexes": [*range(300)]}]}
    data = message_of("OffsetFetch", False, 5, tree).data
    first = sample(1, data, api_key=ApiKey.OFFSET_FETCH)._replace(api_version=5)
    frame = CopiedFrame(first, data, whole=True, copied_all=True)
    contents = words(frame, verbose=verbose)
    assert contents.count("t[") == shown
    assert contents.endswith(f"; {300 - shown} more")
