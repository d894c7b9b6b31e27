"""The bounds of the frame cursor in bpf/frames.h: what it keeps before the proof, and the frames of one call."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from kafka_probe.capture.compiler import HOP_RUNS, HOPS, RUNS
from kafka_probe.capture.sample import DATA_BYTES, Flag, SampleKind, Samples
from tests.builders.wire import API_VERSIONS, framed
from tests.lab.classifier import Classifier, Direction, classifier

WHOLE = 1 << 30


@pytest.fixture(scope="module", params=[False, True], ids=["named port", "any port"])
def cursor(request: pytest.FixtureRequest) -> Iterator[Classifier]:
    with classifier(any_port=request.param) as found:
        yield found


def asked(*correlation_ids: int, client_id: bytes = b"") -> bytes:
    heads = (struct.pack(">hhih", API_VERSIONS, 0, number, len(client_id)) for number in correlation_ids)
    return b"".join(framed(head + client_id) for head in heads)


def answered(*correlation_ids: int) -> bytes:
    return b"".join(framed(struct.pack(">i", number) + bytes(6)) for number in correlation_ids)


def ask(cursor: Classifier, *correlation_ids: int, client_id: bytes = b"") -> None:
    cursor.move(Direction.RECEIVE, asked(*correlation_ids, client_id=client_id), WHOLE)


def answer(cursor: Classifier, *correlation_ids: int) -> None:
    cursor.move(Direction.SEND, answered(*correlation_ids), WHOLE)


def frames(cursor: Classifier, *, answers: bool) -> Samples:
    samples = cursor.samples()
    is_answer = samples["flags"] & int(Flag.RESPONSE) != 0
    found: Samples = samples[(samples["kind"] == SampleKind.FRAME) & (is_answer == answers)]
    return found


@pytest.mark.parametrize(("client_id_bytes", "kept"), [(0, 1), (140, 1), (DATA_BYTES, 0), (500, 0)])
def test_before_the_proof_the_first_request_is_kept_if_it_fits_into_one_sample_and_no_other(
    cursor: Classifier, client_id_bytes: int, kept: int
) -> None:
    before = cursor.losses().get("before_proof", 0)
    cursor.connect(server_side=True)
    requests = range(1, 4 if cursor.any_port else 2)  # on a named port the second request would be the proof
    for number in requests:
        ask(cursor, number, client_id=b"x" * client_id_bytes)
    assert len(frames(cursor, answers=False)) == 0
    answer(cursor, 1)
    first = frames(cursor, answers=False)
    assert first["correlation_id"].tolist() == [1] * kept
    assert first["size"].tolist() == [2 + client_id_bytes] * kept
    assert cursor.losses().get("before_proof", 0) - before == len(requests) - kept


@pytest.mark.parametrize(("in_a_call", "hidden"), [(80_000, 0), (HOP_RUNS * HOPS, 0), (HOP_RUNS * HOPS + RUNS, 2)])
def test_more_frames_in_a_call_than_the_cursor_follows_hide_the_next_two_exchanges(
    cursor: Classifier, in_a_call: int, hidden: int
) -> None:
    cursor.connect(server_side=True)
    before = cursor.losses()
    many = range(2, 2 + in_a_call)
    ask(cursor, 1)
    answer(cursor, 1)
    ask(cursor, *many)
    answer(cursor, *many[: in_a_call // 2])
    answer(cursor, *many[in_a_call // 2 :])
    after = range(many.stop, many.stop + 5)
    for number in after:
        ask(cursor, number)
        answer(cursor, number)
    for answers in (False, True):
        seen = frames(cursor, answers=answers)
        numbers, resync = seen["correlation_id"], seen["flags"] & int(Flag.RESYNC) != 0
        assert numbers[numbers >= after.start].tolist() == [*after[hidden:]]
        assert numbers[resync].tolist() == ([after[hidden]] if hidden else [])
    losses = cursor.losses()
    assert losses["limit_reached"] > before.get("limit_reached", 0)
    assert losses.get("resync", 0) - before.get("resync", 0) == 2 * hidden
