"""Builds the kernel's samples, as arrays of `capture.sample.SAMPLE`, from real messages and plain facts."""

from __future__ import annotations

import ipaddress
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.sample import CLOSE_DATA, DATA_BYTES, OPEN_DATA, SAMPLE, Flag, Protocol, SampleKind
from kafka_probe.protocol.api_keys import ApiKey
from tests.builders.messages import CLIENT_ID, Case, case
from tests.builders.trees import Tree, message_of

Samples = npt.NDArray[Any]

AF_INET, AF_INET6 = 2, 10
ESTABLISHED_TO_FIN_WAIT1, ESTABLISHED_TO_CLOSE, ESTABLISHED_TO_CLOSE_WAIT = 4, 7, 8

_ids = itertools.count(1)


def frame(conn: int = 1, *, data: bytes = b"", sample_bytes: int = DATA_BYTES, **fields: int) -> Samples:
    """Return the samples of one frame, each with at most `sample_bytes` of its data; `fields` are those of SAMPLE."""
    pieces = [data[at : at + sample_bytes] for at in range(0, len(data), sample_bytes)] or [b""]
    samples = np.zeros(len(pieces), SAMPLE)
    samples["conn"], samples["kind"] = conn, SampleKind.FRAME
    samples["frame_bytes"], samples["tcp_seq"] = 100, next(_ids)
    for name, value in fields.items():
        samples[name] = value
    samples["flags"][:-1] |= int(Flag.MORE)  # NumPy 2 takes only plain integers as a number of any type
    samples["part"] = np.arange(len(pieces))
    for sample, piece in zip(samples, pieces, strict=True):
        sample["size"] = len(piece)
        sample["data"][: len(piece)] = np.frombuffer(piece, np.uint8)
    return samples


def message(whole: Case, conn: int = 1, *, flags: int = 0, **fields: int) -> Samples:
    """Return the samples of a message of messages.py."""
    facts = whole.facts
    return frame(
        conn,
        data=whole.data,
        api_key=facts.api_key,
        api_version=facts.api_version,
        flags=flags | (Flag.RESPONSE if facts.response else 0),
        **fields,
    )


def request(api_key: int, version: int, conn: int = 1, *, client_id: str = CLIENT_ID, **fields: int) -> Samples:
    """Return a request of messages.py, with the client's id."""
    whole = case(api_key, version, response=False)
    name = client_id.encode()
    data = len(name).to_bytes(2, "big") + name + whole.data[2 + len(CLIENT_ID) :]
    return message(Case(data, whole.facts, whole.values, whole.wire), conn, **fields)


def response(api_key: int, version: int, conn: int = 1, **fields: int) -> Samples:
    """Return a response of messages.py."""
    return message(case(api_key, version, response=True), conn, **fields)


def by_hand(name: str, version: int, tree: Tree, conn: int = 1, *, answer: bool = False, **fields: Any) -> Samples:
    """Return a message with the named fields and no others, see trees.py."""
    whole = message_of(name, answer, version, tree)
    flags = Flag.RESPONSE if answer else 0
    return frame(conn, data=whole.data, api_key=whole.api.key, api_version=version, flags=flags, **fields)


def fetch(epoch: int, named: tuple[str, ...] = (), forgotten: tuple[str, ...] = (), **fields: Any) -> Samples:
    """Return a Fetch request (version 12) of a session, for a partition of each topic."""
    topics, leaving = (
        [{"Topic": topic, "Partitions": partitions} for topic in named_or_not]
        for named_or_not, partitions in ((named, [{"Partition": 0}]), (forgotten, [0]))
    )
    return by_hand(
        "Fetch",
        12,
        {"SessionId": 7 if epoch else 0, "SessionEpoch": epoch, "Topics": topics, "ForgottenTopicsData": leaving},
        **fields,
    )


def fetched_nothing(conn: int = 1, **fields: int) -> Samples:
    """Return an incremental Fetch response (version 12) without partitions: its wait ended without data."""
    header_and_tags, throttle, error, session, no_topics, tags = b"\0", bytes(4), bytes(2), bytes(4), b"\1", b"\0"
    data = header_and_tags + throttle + error + session + no_topics + tags
    return frame(conn, data=data, api_key=ApiKey.FETCH, api_version=12, flags=Flag.RESPONSE, **fields)


def produced_without_acks(conn: int = 1, **fields: int) -> Samples:
    """Return a Produce request (version 2) with acks=0 and no topics, which has no response."""
    client_id, acks, timeout, no_topics = b"\xff\xff", bytes(2), bytes(4), bytes(4)
    return frame(conn, data=client_id + acks + timeout + no_topics, api_key=ApiKey.PRODUCE, api_version=2, **fields)


def opened(
    conn: int = 1,
    *,
    server_side: bool = False,
    local: tuple[str, int] = ("10.0.0.7", 40001),
    peer: tuple[str, int] = ("10.0.0.1", 9092),
    kind: SampleKind = SampleKind.OPEN,
    ts_ns: int = 0,
    **data: object,
) -> Samples:
    """Return the first sample of a connection; `data` are fields of OPEN_DATA."""
    content = np.zeros(1, OPEN_DATA)
    content["server_side"], content["from_start"] = server_side, True
    for end, (address, port) in (("local", local), ("peer", peer)):
        packed = ipaddress.ip_address(address).packed
        content["family"] = AF_INET if len(packed) == 4 else AF_INET6
        content[f"{end}_address"][0, : len(packed)] = np.frombuffer(packed, np.uint8)
        content[f"{end}_port"] = port
    for name, value in data.items():
        content[name] = value
    return _sample(conn, kind, content, ts_ns=ts_ns)


def closed(conn: int = 1, *, ts_ns: int = 0, **data: int) -> Samples:
    """Return the sample of a connection's close; `data` are fields of CLOSE_DATA. Received data may still be read."""
    content = np.zeros(1, CLOSE_DATA)
    content["first_state"] = ESTABLISHED_TO_FIN_WAIT1
    for name, value in data.items():
        content[name] = value
    return _sample(conn, SampleKind.CLOSE, content, ts_ns=ts_ns)


def gone(conn: int = 1) -> Samples:
    """Return the last sample of a connection."""
    return _sample(conn, SampleKind.GONE, np.zeros(0, np.uint8))


def ended(conn: int = 1, **fields: int) -> Samples:
    """Return the sample of a connection's close and its last sample."""
    return stream(closed(conn, **fields), gone(conn))


def listener(
    *, closed: bool, local: tuple[str, int] = ("10.0.0.1", 9092), netns: int = 0, tgid: int = 0, ts_ns: int = 0
) -> Samples:
    """Return the sample of a listening socket that was opened or closed."""
    sample = opened(0, local=local, peer=local, kind=SampleKind.LISTEN, netns=netns, tgid=tgid, ts_ns=ts_ns)
    sample["flags"] = Flag.CLOSED if closed else 0
    return sample


def rejected(conn: int = 1, protocol: Protocol = Protocol.TLS) -> Samples:
    """Return the sample of a connection whose protocol is not plain Kafka."""
    return _sample(conn, SampleKind.REJECT, np.zeros(0, np.uint8), api_key=protocol)


def stream(*samples: Samples) -> Samples:
    """Join samples as one read of the ring returns them."""
    return np.concatenate(samples)


def _sample(conn: int, kind: SampleKind, content: Samples, **fields: int) -> Samples:
    samples = np.zeros(1, SAMPLE)
    samples["conn"], samples["kind"], samples["size"] = conn, kind, content.nbytes
    samples["data"][0, : content.nbytes] = content.view(np.uint8)
    for name, value in fields.items():
        samples[name] = value
    return samples
