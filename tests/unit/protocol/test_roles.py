"""No field that we keep by its name is skipped where Kafka uses that name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kafka_probe.protocol.plan import Form, PlanStep, full_plan
from kafka_probe.protocol.schemas import Api, SchemaField, apis, fields_of

# The names of what we report, as Kafka writes them.
REPORTED = re.compile(
    r"(Topic|TopicName|TopicNames|TopicId|SourceTopics|SinkTopics|Partition|PartitionIndex|PartitionIndexes|PartitionId)$"
    r"|(Group|Member|Instance|Transactional|Cluster|Broker|Node|Controller|Voter|Replica|Producer|Session|Leader)Ids?$"
    r"|(Epoch|Offset|Offsets|Watermark|ErrorCode|TimeoutMs|timeoutMs|ThrottleTimeMs|MaxWaitMs|MinBytes|MaxBytes)$"
    r"|^(Acks|IsolationLevel|Host|HostName|Port|V0Host|V0Port|ClientSoftwareName|ClientSoftwareVersion|Mechanisms)$"
    r"|^(ProtocolType|ProtocolName|ServerAssignor|AssignorName|ApiKey|Records)$"
)
# Called so, and something else.
PASSED_OVER = {
    "TopicConfigErrorCode",  # of a topic that was created: only its configuration is not shown
    "MaxNumOffsets",  # how many
    "DeletePartition",  # whether
    "BrokerIds",  # where replicas shall be
    "TelemetryMaxBytes",  # of the client's metrics
    "CopartitionGroups.SourceTopics",  # indices into another list
    "CopartitionGroups.RepartitionSourceTopics",
    "TaskOffsets.Partition",  # of a subtopology, whose topics are not named
    "TaskEndOffsets.Partition",
    "Acls.Host",  # of whom a rule is about
    "Creations.Host",
    "MatchingAcls.Host",
}


@pytest.mark.parametrize("api", apis().values(), ids=lambda api: api.name)
@pytest.mark.parametrize("response", [False, True], ids=["request", "response"])
def test_every_field_that_is_called_so_is_kept(api: Api, response: bool) -> None:
    for version in api.versions:
        roles = dict(kept(full_plan(response, api, version).steps))
        for path, field in named(fields_of(api, response=response, version=version), version):
            ends = {field.name, ".".join(path.split(".")[-2:])}
            if REPORTED.search(field.name) and not field.fields and not ends & PASSED_OVER:
                assert path in roles, version


def named(fields: tuple[SchemaField, ...], version: int, path: str = "") -> Iterator[tuple[str, SchemaField]]:
    for field in fields:
        if field.versions[0] <= version <= field.versions[1]:
            yield f"{path}{field.name}", field
            yield from named(field.fields, version, f"{path}{field.name}.")


def kept(steps: tuple[PlanStep, ...], path: str = "") -> Iterator[tuple[str, object]]:
    for step in steps:
        inner = step.inner
        here = f"{path}{step.name}"
        if step.form is Form.TAGS:
            yield from kept(inner, path)
            continue
        if step.form in (Form.ARRAY, Form.NULLABLE_STRUCT):
            (element,) = inner
            if element.role is not None:
                yield here, element.role
            inner = element.inner
        if step.role is not None:
            yield here, step.role
        yield from kept(inner, f"{here}.")
