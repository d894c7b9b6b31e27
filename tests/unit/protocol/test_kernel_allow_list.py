"""Fields that may leave the kernel: the list is closed, and none can contain a record or a credential."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kafka_probe.protocol.kernel_allow_list import EMPTIED, HEADER_ONLY, HIDDEN, LIMITS, CopyRule, copy_rules
from kafka_probe.protocol.schemas import SchemaField, apis, fields_of
from tests.builders.api_names import api_name

RULES = copy_rules()
NAMES = {api.name for api in apis().values()}

# What may be a secret, or what programs send to each other through the broker; bytes are opaque, whatever their name.
SECRET = re.compile(
    "password|secret|hmac|token|salt|auth.?bytes|credential|principal|^user$|^value$|value$|metrics$"
    "|(request|response|user)_?data$|metadata$|^reason$",
    re.IGNORECASE,
)
# Names of metrics, which brokers ask clients for.
HARMLESS = {("GetTelemetrySubscriptions", "RequestedMetrics")}


def kept_back(api: str) -> frozenset[str]:
    """Return the names of an API's strings that are not copied."""
    return HIDDEN.get(api, frozenset()) | EMPTIED.get(api, frozenset())


def rule_of(name: str, version: int) -> CopyRule:
    return next(rule for rule in RULES if (api_name(rule.api_key), rule.api_version) == (name, version))


def strings(fields: tuple[SchemaField, ...]) -> Iterator[SchemaField]:
    """Yield all fields that can contain text or bytes."""
    for field in fields:
        if re.fullmatch(r"(\[\])?(string|bytes|records)", field.type):
            yield field
        yield from strings(field.fields)


def leaving(rule: CopyRule, *, response: bool) -> list[SchemaField]:
    """Return the fields of text or bytes whose contents leave the kernel."""
    api = apis()[rule.api_key]
    if not (rule.response_limit_bytes if response else rule.request_limit_bytes):
        return []
    fields = strings(fields_of(api, response=response, version=rule.api_version))
    stays = kept_back(api.name)
    return [field for field in fields if field.name not in stays and not field.type.endswith(("bytes", "records"))]


def test_every_version_of_every_api_has_one_rule() -> None:
    assert len(RULES) == len({(rule.api_key, rule.api_version) for rule in RULES})
    assert {(rule.api_key, rule.api_version) for rule in RULES} == {
        (api.key, version) for api in apis().values() for version in api.versions
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{api_name(rule.api_key)} {rule.api_version}")
def test_nothing_leaves_that_may_be_a_secret(rule: CopyRule) -> None:
    name = api_name(rule.api_key)
    for response in (False, True):
        named = {field.name for field in leaving(rule, response=response) if SECRET.search(field.name)}
        assert not {(name, field) for field in named} - HARMLESS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{api_name(rule.api_key)} {rule.api_version}")
def test_a_body_of_which_something_stays_or_may_stay_is_walked(rule: CopyRule) -> None:
    api = apis()[rule.api_key]
    for response, program in ((False, rule.request_program), (True, rule.response_program)):
        limit = rule.response_limit_bytes if response else rule.request_limit_bytes
        fields = fields_of(api, response=response, version=rule.api_version)
        present = [field for field in strings(fields) if field.versions[0] <= rule.api_version <= field.versions[1]]
        names = kept_back(api.name)
        stays = [field for field in present if field.type.endswith(("bytes", "records")) or field.name in names]
        of_any_version = response and api.name == "ApiVersions"
        assert bool(program) == bool(limit and (stays or rule.flexible or of_any_version))


def test_every_api_is_either_limited_or_leaves_by_its_header() -> None:
    assert not LIMITS.keys() & HEADER_ONLY.keys()
    assert LIMITS.keys() | HEADER_ONLY.keys() == NAMES


def test_what_is_hidden_exists() -> None:
    for name, fields in (*HIDDEN.items(), *EMPTIED.items()):
        (api,) = (api for api in apis().values() if api.name == name)
        eras = [era.fields for era in (*api.request, *api.response)]
        assert fields <= {field.name for era in eras for field in strings(era)}
    assert not any(HIDDEN.get(name, frozenset()) & fields for name, fields in EMPTIED.items())


@pytest.mark.parametrize("name", ["CreateTopics", "JoinGroup", "SyncGroup", "OffsetCommit", "StreamsGroupHeartbeat"])
def test_a_field_that_must_stay_is_found_where_nobody_hides_it(name: str) -> None:
    (api,) = (api for api in apis().values() if api.name == name)
    found = [field for era in api.request for field in strings(era.fields)]
    assert any(SECRET.search(field.name) or field.type.endswith("bytes") for field in found)


@pytest.mark.parametrize(
    "name",
    [
        "SaslAuthenticate",
        "AlterUserScramCredentials",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
        "DescribeConfigs",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "PushTelemetry",
        "Envelope",
        "FetchSnapshot",
    ],
)
def test_no_body_leaves_of(name: str) -> None:
    limits = {(r.request_limit_bytes, r.response_limit_bytes) for r in RULES if api_name(r.api_key) == name}
    assert limits == {(0, 0)}


def test_lengths_are_varints_from_the_right_version_on() -> None:
    assert not rule_of("Produce", 8).flexible
    assert rule_of("Produce", 9).flexible
    assert rule_of("ApiVersions", 4).flexible
    assert not rule_of("SaslHandshake", 1).flexible
