"""Secrets stay in the kernel: they contain MARKER, and the capture refuses any sample with MARKER."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.kernel_allow_list import EMPTIED, HEADER_ONLY, HIDDEN, CopyRule, copy_rules
from kafka_probe.protocol.schemas import Api, SchemaField, apis
from tests.builders.api_names import api_name
from tests.builders.expected import expected
from tests.builders.trees import Tree, generated
from tests.builders.wire import (
    FETCH,
    MARKER,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    Frame,
    Seen,
    answer,
    header_only,
    request,
    response,
)
from tests.lab.capture import Capture
from tests.lab.conversation import kafka, receive_pieces, send_pieces

pytestmark = pytest.mark.root

SHARE_FETCH = ApiKey.SHARE_FETCH
SECRET_APIS = [api for api in apis().values() if api.name in HEADER_ONLY]
# Tokens of SASL: PLAIN, and the four messages of SCRAM.
TOKENS = (
    b"\0alice\0" + MARKER,
    b"n,,n=alice,r=" + MARKER,
    b"r=abc,s=" + MARKER + b",i=4096",
    b"c=biws,r=abc,p=" + MARKER,
    b"v=" + MARKER,
)


def with_secrets(tree: Tree, fields: tuple[SchemaField, ...], hidden: frozenset[str]) -> Tree:
    """Return the same tree with MARKER in every secret."""
    by_name = {field.name: field for field in fields}
    return {name: _with_secret(value, by_name[name], hidden) for name, value in tree.items()}


def _with_secret(value: Any, field: SchemaField, hidden: frozenset[str]) -> Any:
    match value:
        case dict():
            return with_secrets(value, field.fields, hidden)
        case list():
            return [_with_secret(one, field, hidden) for one in value]
        case bytes() if field.type.endswith("bytes"):
            return MARKER
        case str() if field.name in hidden:
            return MARKER.decode()
    return value


def secretive(rule: CopyRule, seed: int, *, response: bool) -> Frame:
    """Return a generated message with MARKER in it, and the facts that must be reported."""
    api = apis()[rule.api_key]
    message = generated(api, response, rule.api_version, seed)
    names = HIDDEN.get(api.name, frozenset()) | EMPTIED.get(api.name, frozenset()) or frozenset({"Value"})
    telling = replace(message, tree=with_secrets(message.tree, message.fields, names))
    seen = expected(telling)
    wire = telling.frame(seed)
    return Frame(wire, Seen(seen.facts(telling), seed, len(wire), tuple(seen.measured)))


SEEDS = range(1, 9)
HIDING = [
    rule
    for rule in copy_rules()
    if (rule.request_program or rule.response_program)
    and rule.api_key not in (PRODUCE, FETCH, SHARE_FETCH)
    and any(MARKER in secretive(rule, seed, response=way).wire for seed in SEEDS for way in (False, True))
]


@pytest.mark.parametrize("rule", HIDING, ids=lambda rule: f"{api_name(rule.api_key)} {rule.api_version}")
def test_hidden_fields_stay_and_all_around_them_leaves_as_it_is(capture: Capture, port: int, rule: CopyRule) -> None:
    with kafka(port) as talk:
        for seed in SEEDS:
            pieces = seed, seed % 4
            talk.ask(secretive(rule, seed, response=False), write=send_pieces(*pieces), read=receive_pieces(*pieces))
            talk.answer(secretive(rule, seed, response=True), write=send_pieces(*pieces), read=receive_pieces(*pieces))
    assert capture.saw(talk)


@pytest.mark.parametrize("api", SECRET_APIS, ids=lambda api: api.name)
def test_secret_bodies_leave_by_their_header(capture: Capture, port: int, api: Api) -> None:
    tokens = TOKENS if api.key == SASL_AUTHENTICATE else (MARKER, bytes(8) + MARKER)
    with kafka(port) as talk:
        for version in api.versions:
            for correlation_id, token in enumerate(tokens):
                body = struct.pack(">i", len(token)) + token
                talk.ask(header_only(api.key, version, correlation_id, body, flexible=api.flexible(version)))
                talk.answer(answer(api.key, version, correlation_id, bytes(2) + body))
        talk.ask(request(METADATA, 12, 9))
        talk.answer(response(METADATA, 12, 9))
    assert capture.saw(talk)
