"""What must stay in the kernel does: MARKER stands there, and the capture refuses any record that holds it."""

from __future__ import annotations

import struct

import pytest

from kafka_probe.protocol.decoder import decode
from kafka_probe.protocol.facts import Status
from kafka_probe.protocol.rules import HEADER_ONLY, HIDDEN, CopyRule, copy_rules
from kafka_probe.protocol.schemas import WIDTHS, Api, SchemaField, api_name, apis, fields_of
from tests.golden.capture import Capture
from tests.golden.conversation import conversation, receive_pieces, send_pieces
from tests.golden.share import SHARE_FETCH
from tests.golden.wire import (
    FETCH,
    MARKER,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    Frame,
    Seen,
    answer,
    framed,
    header_only,
    request,
    response,
)
from tests.unit.protocol.messages import CLIENT_ID

pytestmark = [pytest.mark.root, pytest.mark.kernel]

WALKED = [
    rule
    for rule in copy_rules()
    if (rule.request_walk or rule.response_walk) and rule.api_key not in (PRODUCE, FETCH, SHARE_FETCH)
]
SECRET_APIS = [api for api in apis().values() if api.name in HEADER_ONLY]
# What is said in SASL: PLAIN, and the four messages of SCRAM.
TOKENS = (
    b"\0alice\0" + MARKER,
    b"n,,n=alice,r=" + MARKER,
    b"r=abc,s=" + MARKER + b",i=4096",
    b"c=biws,r=abc,p=" + MARKER,
    b"v=" + MARKER,
)


class Encoder:
    """A message with two elements in every array and `secret` wherever it must stay, by Kafka's definition."""

    def __init__(self, rule: CopyRule, secret: bytes) -> None:
        self.api = apis()[rule.api_key]
        self.version = rule.api_version
        self.flexible = self.api.flexible(self.version)
        self.hidden = HIDDEN.get(self.api.name, frozenset())
        self.secret = secret

    def frame(self, *, response: bool, correlation_id: int) -> Frame:
        body = self.fields(fields_of(self.api, response=response, version=self.version))
        if response:
            head = struct.pack(">i", correlation_id)
            tagged = self.api.flexible_response_header(self.version)
            data = b"\0" * tagged + body
        else:
            head = struct.pack(">hhi", self.api.key, self.version, correlation_id)
            data = struct.pack(">h", len(CLIENT_ID)) + CLIENT_ID.encode() + b"\0" * self.flexible + body
        shape = decode(response, self.api.key, self.version, data, copied_all=True)
        wire = framed(head + data)
        return Frame(wire, Seen(shape.facts, correlation_id, len(wire)))

    def fields(self, fields: tuple[SchemaField, ...]) -> bytes:
        untagged = (field for field in fields if self.within(field.versions) and not self.within(field.tagged))
        return b"".join(map(self.field, untagged)) + b"\0" * self.flexible

    def field(self, field: SchemaField) -> bytes:
        if not field.type.startswith("[]"):
            present = b"\x01" if field.type == "struct" and self.within(field.nullable) else b""
            return present + self.value(field, field.type)
        return self.length(2, ">i") + 2 * self.value(field, field.type[2:])

    def value(self, field: SchemaField, kind: str) -> bytes:
        if kind == "struct":
            return self.fields(field.fields)
        if kind in WIDTHS:
            return bytes(WIDTHS[kind])
        content = self.secret if kind == "bytes" or field.name in self.hidden else field.name.encode()
        return self.length(len(content), ">h" if kind == "string" else ">i") + content

    def length(self, count: int, fixed: str) -> bytes:
        assert count < 127
        return bytes([count + 1]) if self.flexible else struct.pack(fixed, count)

    def within(self, versions: tuple[int, int] | None) -> bool:
        return versions is not None and versions[0] <= self.version <= versions[1]


@pytest.mark.parametrize("rule", WALKED, ids=lambda rule: f"{api_name(rule.api_key)} {rule.api_version}")
def test_hidden_fields_leave_empty_and_all_around_them_as_it_is(capture: Capture, port: int, rule: CopyRule) -> None:
    telling, empty = Encoder(rule, MARKER), Encoder(rule, b"")
    with conversation(port) as talk:
        for correlation_id, piece in enumerate((0, 1, 7)):
            asked = telling.frame(response=False, correlation_id=correlation_id)
            answered = telling.frame(response=True, correlation_id=correlation_id)
            talk.ask(asked, write=send_pieces(piece), read=receive_pieces(*[piece] * 3))
            talk.answer(answered, write=send_pieces(piece), read=receive_pieces(*[piece] * 3))
    expected = [empty.frame(response=by_server, correlation_id=0).seen.facts for by_server in (False, True)]
    for end in capture.ends_of(talk):
        assert [frame.facts for frame in end.frames] == expected * 3
        assert [frame.frame_bytes for frame in end.frames] == [said.frame_bytes for said in talk.said]
    assert {facts.status for facts in expected} <= {Status.COMPLETE}
    assert capture.lost() == {}


@pytest.mark.parametrize("api", SECRET_APIS, ids=lambda api: api.name)
def test_secret_bodies_leave_by_their_header(capture: Capture, port: int, api: Api) -> None:
    tokens = TOKENS if api.key == SASL_AUTHENTICATE else (MARKER, bytes(8) + MARKER)
    with conversation(port) as talk:
        for version in api.versions:
            for correlation_id, token in enumerate(tokens):
                body = struct.pack(">i", len(token)) + token
                talk.ask(header_only(api.key, version, correlation_id, body, flexible=api.flexible(version)))
                talk.answer(answer(api.key, version, correlation_id, bytes(2) + body))
        talk.ask(request(METADATA, 12, 9))
        talk.answer(response(METADATA, 12, 9))
    assert capture.saw(talk)
