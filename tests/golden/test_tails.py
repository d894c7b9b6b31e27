"""Samples leave complete from the buffers that a CPU's connections share, and contain nothing beyond their size."""

from __future__ import annotations

import numpy as np
import pytest

from kafka_probe.capture.sample import DATA_BYTES, SampleKind
from tests.builders.wire import FETCH, fetched, records_of, request
from tests.lab.capture import Capture
from tests.lab.conversation import conversation, exchange, transfer

pytestmark = pytest.mark.root

ROUNDS = 8
TOPICS = {f"a-topic-with-a-long-name-{number}": {0: records_of(3)} for number in range(20)}  # several samples of data
NOT_KAFKA = b"GET / HTTP/1.1\r\nAuthorization: Basic c2VjcmV0\r\n\r\n"
OF_A_FRAME = ["tcp_seq", "frame_bytes", "correlation_id", "latency_us", "api_version", "size", "part"]


@pytest.mark.kernel
def test_samples_hold_nothing_of_other_connections(capture: Capture, port: int) -> None:
    for correlation_id in range(1, ROUNDS + 1):
        with conversation(port) as long, conversation(port) as short, conversation(port) as refused:
            long.ask(request(FETCH, 12, correlation_id))
            long.answer(fetched(12, TOPICS, correlation_id=correlation_id))
            transfer(refused.client, refused.server, NOT_KAFKA)
            exchange(short, [correlation_id])
    samples = capture.samples()
    assert {SampleKind.FRAME, SampleKind.OPEN, SampleKind.CLOSE, SampleKind.REJECT, SampleKind.GONE} <= {
        *samples["kind"].tolist()
    }
    assert samples["part"].max() > 1
    beyond = np.arange(DATA_BYTES) >= samples["size"][:, np.newaxis]
    assert not samples["data"][beyond].any()
    rejected = samples[samples["kind"] == SampleKind.REJECT]
    assert not any(rejected[name].any() for name in OF_A_FRAME)
