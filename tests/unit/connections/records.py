"""Short builders: the kernel's records, as arrays of `capture.record.RECORD`, out of real messages and plain facts."""

from __future__ import annotations

import ipaddress
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from kafka_probe.capture.record import CLOSE_DATA, DATA_BYTES, OPEN_DATA, RECORD, Flag, Kind, Protocol
from tests.unit.protocol.messages import CLIENT_ID, Case, case
from tests.unit.protocol.trees import Tree, message_of

Records = npt.NDArray[Any]

AF_INET, AF_INET6 = 2, 10
ESTABLISHED_TO_FIN_WAIT1, ESTABLISHED_TO_CLOSE, ESTABLISHED_TO_CLOSE_WAIT = 4, 7, 8

_ids = itertools.count(1)


def frame(conn: int = 1, *, data: bytes = b"", record_bytes: int = DATA_BYTES, **fields: int) -> Records:
    """The records of one frame, each with `record_bytes` of its data at most; `fields` are those of RECORD."""
    pieces = [data[at : at + record_bytes] for at in range(0, len(data), record_bytes)] or [b""]
    records = np.zeros(len(pieces), RECORD)
    records["conn"], records["kind"] = conn, Kind.FRAME
    records["frame_bytes"], records["tcp_seq"] = 100, next(_ids)
    for name, value in fields.items():
        records[name] = value
    records["flags"][:-1] |= Flag.MORE
    records["part"] = np.arange(len(pieces))
    for record, piece in zip(records, pieces, strict=True):
        record["size"] = len(piece)
        record["data"][: len(piece)] = np.frombuffer(piece, np.uint8)
    return records


def message(whole: Case, conn: int = 1, *, flags: int = 0, **fields: int) -> Records:
    """The records of a message of protocol/messages.py."""
    facts = whole.facts
    return frame(
        conn,
        data=whole.data,
        api_key=facts.api_key,
        api_version=facts.api_version,
        flags=flags | (Flag.RESPONSE if facts.response else 0),
        **fields,
    )


def request(api_key: int, version: int, conn: int = 1, *, client_id: str = CLIENT_ID, **fields: int) -> Records:
    """A request of protocol/messages.py, in the name of the client."""
    whole = case(api_key, version, response=False)
    name = client_id.encode()
    data = len(name).to_bytes(2, "big") + name + whole.data[2 + len(CLIENT_ID) :]
    return message(Case(data, whole.facts, whole.values), conn, **fields)


def response(api_key: int, version: int, conn: int = 1, **fields: int) -> Records:
    """A response of protocol/messages.py."""
    return message(case(api_key, version, response=True), conn, **fields)


def by_hand(name: str, version: int, tree: Tree, conn: int = 1, *, answer: bool = False, **fields: Any) -> Records:
    """A message with the named fields and no others, see protocol/trees.py."""
    whole = message_of(name, answer, version, tree)
    flags = Flag.RESPONSE if answer else 0
    return frame(conn, data=whole.data, api_key=whole.api.key, api_version=version, flags=flags, **fields)


def fetch(epoch: int, named: tuple[str, ...] = (), forgotten: tuple[str, ...] = (), **fields: Any) -> Records:
    """A Fetch request (version 12) of a session, for a partition of each topic."""
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


def fetched_nothing(conn: int = 1, **fields: int) -> Records:
    """A Fetch response (version 12) whose wait ended without data: an incremental one that names no partition."""
    header_and_tags, throttle, error, session, no_topics, tags = b"\0", bytes(4), bytes(2), bytes(4), b"\1", b"\0"
    data = header_and_tags + throttle + error + session + no_topics + tags
    return frame(conn, data=data, api_key=1, api_version=12, flags=Flag.RESPONSE, **fields)


def produced_without_acks(conn: int = 1, **fields: int) -> Records:
    """A Produce request (version 2) with acks=0 and no topics: nobody answers it."""
    client_id, acks, timeout, no_topics = b"\xff\xff", bytes(2), bytes(4), bytes(4)
    return frame(conn, data=client_id + acks + timeout + no_topics, api_key=0, api_version=2, **fields)


def opened(
    conn: int = 1,
    *,
    server_side: bool = False,
    local: tuple[str, int] = ("10.0.0.7", 40001),
    peer: tuple[str, int] = ("10.0.0.1", 9092),
    kind: Kind = Kind.OPEN,
    ts_ns: int = 0,
    **data: object,
) -> Records:
    """The record of a connection's first sight; `data` are fields of OPEN_DATA."""
    content = np.zeros(1, OPEN_DATA)
    content["server_side"], content["from_start"] = server_side, True
    for end, (address, port) in (("local", local), ("peer", peer)):
        packed = ipaddress.ip_address(address).packed
        content["family"] = AF_INET if len(packed) == 4 else AF_INET6
        content[f"{end}_address"][0, : len(packed)] = np.frombuffer(packed, np.uint8)
        content[f"{end}_port"] = port
    for name, value in data.items():
        content[name] = value
    return _record(conn, kind, content, ts_ns=ts_ns)


def closed(conn: int = 1, *, ts_ns: int = 0, **data: int) -> Records:
    """The record of a connection's end; `data` are fields of CLOSE_DATA. What was received may still be read."""
    content = np.zeros(1, CLOSE_DATA)
    content["first_state"] = ESTABLISHED_TO_FIN_WAIT1
    for name, value in data.items():
        content[name] = value
    return _record(conn, Kind.CLOSE, content, ts_ns=ts_ns)


def gone(conn: int = 1) -> Records:
    """The last record of a connection."""
    return _record(conn, Kind.GONE, np.zeros(0, np.uint8))


def ended(conn: int = 1, **fields: int) -> Records:
    """The records of a connection's end, and that nothing more follows."""
    return stream(closed(conn, **fields), gone(conn))


def listener(*, closed: bool, local: tuple[str, int] = ("10.0.0.1", 9092), netns: int = 0, ts_ns: int = 0) -> Records:
    """The record of a listening socket that was opened or closed."""
    record = opened(0, local=local, peer=local, kind=Kind.LISTEN, netns=netns, ts_ns=ts_ns)
    record["flags"] = Flag.CLOSED if closed else 0
    return record


def rejected(conn: int = 1, protocol: Protocol = Protocol.TLS) -> Records:
    """The record of a connection that does not speak plain Kafka."""
    return _record(conn, Kind.REJECT, np.zeros(0, np.uint8), api_key=protocol)


def stream(*records: Records) -> Records:
    """Records after one another, as one read of the ring gives them."""
    return np.concatenate(records)


def _record(conn: int, kind: Kind, content: Records, **fields: int) -> Records:
    records = np.zeros(1, RECORD)
    records["conn"], records["kind"], records["size"] = conn, kind, content.nbytes
    records["data"][0, : content.nbytes] = content.view(np.uint8)
    for name, value in fields.items():
        records[name] = value
    return records
