"""What may leave the kernel: the list is closed, and nothing on it can carry a record or a credential."""

from __future__ import annotations

import pytest

from kafka_probe.protocol.rules import (
    HEADER_ONLY,
    LIMITS,
    WALKED_REQUESTS,
    WALKED_RESPONSES,
    CopyRule,
    copy_rules,
)
from kafka_probe.protocol.schemas import SchemaField, api_name, apis, fields_of

RULES = copy_rules()


def rule_of(name: str, version: int) -> CopyRule:
    return next(rule for rule in RULES if (api_name(rule.api_key), rule.api_version) == (name, version))


def holds_records(fields: tuple[SchemaField, ...]) -> bool:
    return any(field.type == "records" or holds_records(field.fields) for field in fields)


def test_every_version_of_every_api_has_one_rule() -> None:
    assert len(RULES) == len({(rule.api_key, rule.api_version) for rule in RULES})
    assert {(rule.api_key, rule.api_version) for rule in RULES} == {
        (api.key, version) for api in apis().values() for version in api.versions
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{api_name(rule.api_key)} {rule.api_version}")
def test_records_are_walked_over_wherever_a_body_leaves(rule: CopyRule) -> None:
    api = apis()[rule.api_key]
    for response, limit, walk in (
        (False, rule.request_limit_bytes, rule.walk_request),
        (True, rule.response_limit_bytes, rule.walk_response),
    ):
        if limit:
            assert walk == holds_records(fields_of(api, response=response, version=rule.api_version))
        else:
            assert not walk


def test_what_is_header_only_is_not_allowed_as_well() -> None:
    assert not HEADER_ONLY.keys() & LIMITS.keys()


def test_the_tables_name_apis_that_exist() -> None:
    names = {api.name for api in apis().values()}
    assert HEADER_ONLY.keys() | LIMITS.keys() | WALKED_REQUESTS | WALKED_RESPONSES <= names


@pytest.mark.parametrize(
    "name",
    [
        "SaslAuthenticate",
        "AlterUserScramCredentials",
        "CreateDelegationToken",
        "DescribeDelegationToken",
        "DescribeConfigs",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "PushTelemetry",
        "Envelope",
        "FetchSnapshot",
        "CreateTopics",
    ],
)
def test_no_body_leaves_of(name: str) -> None:
    limits = {(r.request_limit_bytes, r.response_limit_bytes) for r in RULES if api_name(r.api_key) == name}
    assert limits == {(0, 0)}


def test_headers_are_flexible_from_the_right_version_on() -> None:
    produce_8, produce_9 = rule_of("Produce", 8), rule_of("Produce", 9)
    assert (produce_8.request_header_flexible, produce_8.response_header_flexible) == (False, False)
    assert (produce_9.request_header_flexible, produce_9.response_header_flexible) == (True, True)
    api_versions = rule_of("ApiVersions", 4)
    assert (api_versions.request_header_flexible, api_versions.response_header_flexible) == (True, False)
    assert not rule_of("SaslHandshake", 1).request_header_flexible
