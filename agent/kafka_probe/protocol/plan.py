"""Plans: what the decoder does with the bytes of one API version in one direction.

A plan is Kafka's definition reduced to the untagged fields of the version, each with the role it plays in our facts.
Roles go by field name and scope: Kafka names alike what is alike. Fields behind the last one with a role are left out:
a frame is complete once its facts are. No field that we report is tagged, so tagged fields are skipped by their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum, auto
from functools import cache
from itertools import takewhile

from kafka_probe.protocol.facts import Status
from kafka_probe.protocol.rules import LIMITS, STOPS
from kafka_probe.protocol.schemas import WIDTHS, SchemaField, apis, fields_of


class Form(IntEnum):
    """How a field stands on the wire."""

    FIXED = auto()
    STRING = auto()  # also bytes: a length, then so many bytes
    RECORDS = auto()  # a length, then the kernel's stub
    ARRAY = auto()
    STRUCT = auto()
    NULLABLE_STRUCT = auto()  # behind one byte, negative for null
    TAGS = auto()


class Role(StrEnum):
    """What a value means to us. SCALARS are named after their attribute in Facts."""

    CLIENT_ID = "client_id"
    SOFTWARE_NAME = "software_name"
    SOFTWARE_VERSION = "software_version"
    MECHANISM = "mechanism"
    ACKS = "acks"
    CLUSTER_ID = "cluster_id"
    KEY_TYPE = "key_type"  # of FindCoordinator: says whether its keys are groups
    KEY = "key"
    GROUP = "group"
    ERROR = "error"
    THROTTLE_MS = "throttle_ms"
    TOPIC = "topic"  # an element of an array of topics: a struct, or just the name
    TOPIC_NAME = "topic_name"
    TOPIC_ID = "topic_id"
    TOPIC_ERROR = "topic_error"
    PARTITION = "partition"  # an element of an array of partitions
    PARTITION_INDEX = "partition_index"
    PARTITION_ERROR = "partition_error"
    OFFSET = "offset"
    RECORDS = "records"


class Scope(Enum):
    FRAME = auto()
    TOPIC = auto()
    PARTITION = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """One field. `size` is its width (FIXED) or that of its length (0: compact). `inner` holds the fields of a struct,
    or the one step that all elements of an array share."""

    name: str
    form: Form
    size: int = 0
    role: Role | None = None
    inner: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a frame, and its status once all are done."""

    steps: tuple[Step, ...]
    done: Status


SCALARS = frozenset(
    {
        Role.CLIENT_ID,
        Role.SOFTWARE_NAME,
        Role.SOFTWARE_VERSION,
        Role.MECHANISM,
        Role.ACKS,
        Role.CLUSTER_ID,
        Role.KEY_TYPE,
    }
)

_LENGTH_WIDTHS = {"string": 2, "bytes": 4, "records": 4, "[]": 4}

_ROLES: dict[Scope, dict[str, Role]] = {
    Scope.FRAME: {
        "ClientSoftwareName": Role.SOFTWARE_NAME,
        "ClientSoftwareVersion": Role.SOFTWARE_VERSION,
        "Mechanism": Role.MECHANISM,
        "Acks": Role.ACKS,
        "ClusterId": Role.CLUSTER_ID,
        "KeyType": Role.KEY_TYPE,
        "Key": Role.KEY,
        "CoordinatorKeys": Role.KEY,
        "GroupId": Role.GROUP,
        "ErrorCode": Role.ERROR,
        "ThrottleTimeMs": Role.THROTTLE_MS,
        "SubscribedTopicNames": Role.TOPIC,
        "Topics": Role.TOPIC,
        "TopicData": Role.TOPIC,
        "Responses": Role.TOPIC,
        "TopicPartitions": Role.TOPIC,
    },
    Scope.TOPIC: {
        "Name": Role.TOPIC_NAME,
        "Topic": Role.TOPIC_NAME,
        "TopicId": Role.TOPIC_ID,
        "ErrorCode": Role.TOPIC_ERROR,
        "Partitions": Role.PARTITION,
        "PartitionData": Role.PARTITION,
        "PartitionResponses": Role.PARTITION,
        "PartitionIndexes": Role.PARTITION,
    },
    Scope.PARTITION: {
        "Partition": Role.PARTITION_INDEX,
        "PartitionIndex": Role.PARTITION_INDEX,
        "Index": Role.PARTITION_INDEX,
        "ErrorCode": Role.PARTITION_ERROR,
        "FetchOffset": Role.OFFSET,
        "BaseOffset": Role.OFFSET,
        "CommittedOffset": Role.OFFSET,
        "Offset": Role.OFFSET,
        "Records": Role.RECORDS,
    },
}
_OPENS = {Role.TOPIC: Scope.TOPIC, Role.PARTITION: Scope.PARTITION}

# The client id keeps its old form in flexible headers, so that any broker can read any ApiVersions request.
_CLIENT_ID = Step("ClientId", Form.STRING, 2, Role.CLIENT_ID)
_TAGS = Step("TaggedFields", Form.TAGS)
_CONTROLLED_SHUTDOWN_0 = (7, 0)  # the only request whose header has no client id
_API_VERSIONS = 18


def plan_for(response: bool, api_key: int, api_version: int, data: bytes) -> Plan:
    """The plan for a frame with these data, also for APIs and versions that do not exist."""
    if response and api_key == _API_VERSIONS:
        return _api_versions_response(api_version, data)
    api = apis().get(api_key)
    if api is not None and api_version in api.versions:
        return _compiled(response, api_key, api_version)
    # The client id stands first in every later header too, whatever the body is.
    steps = () if response else (_CLIENT_ID,)
    return Plan(steps, Status.UNKNOWN_API if api is None else Status.UNKNOWN_VERSION)


def _api_versions_response(api_version: int, data: bytes) -> Plan:
    """A broker that does not know the version asked for answers in version 0 with error 35 (KIP-511). So the error
    code, first in every version, decides what follows it."""
    if data[:2] == b"\x00\x23":
        return _compiled(True, _API_VERSIONS, 0)
    if api_version in apis()[_API_VERSIONS].versions:
        return _compiled(True, _API_VERSIONS, api_version)
    return Plan((Step("ErrorCode", Form.FIXED, 2, Role.ERROR),), Status.UNKNOWN_VERSION)


@cache
def _compiled(response: bool, api_key: int, api_version: int) -> Plan:
    api = apis()[api_key]
    flexible = api.flexible(api_version)
    header: tuple[Step, ...]
    if response:
        header = (_TAGS,) if api.flexible_response_header(api_version) else ()
    elif (api_key, api_version) == _CONTROLLED_SHUTDOWN_0:
        header = ()
    else:
        header = (_CLIENT_ID, _TAGS) if flexible else (_CLIENT_ID,)
    if not LIMITS.get(api.name, (0, 0))[response]:
        return Plan(() if response else header[:1], Status.HEADER_ONLY)
    fields = fields_of(api, response=response, version=api_version)
    if not response:
        fields = tuple(takewhile(lambda field: field.name != STOPS.get(api.name), fields))
    body = _steps(fields, api_version, flexible, Scope.FRAME)
    return Plan(_until_last_role(header + body), Status.COMPLETE)


def _steps(fields: tuple[SchemaField, ...], version: int, flexible: bool, scope: Scope) -> tuple[Step, ...]:
    present = tuple(
        _step(field, version, flexible, scope)
        for field in fields
        if _holds(field.versions, version) and not _holds(field.tagged, version)
    )
    return (*present, _TAGS) if flexible else present


def _step(field: SchemaField, version: int, flexible: bool, scope: Scope) -> Step:
    role = _ROLES[scope].get(field.name)
    kind = field.type.removeprefix("[]")
    inner_scope = _OPENS.get(role, scope) if role else scope
    if field.type.startswith("[]"):
        # The role of an array is that of its elements; numbers in an array of partitions are their indexes.
        index = role is Role.PARTITION and kind != "struct"
        element = _plain(kind, field, version, flexible, inner_scope, Role.PARTITION_INDEX if index else role)
        return Step(field.name, Form.ARRAY, 0 if flexible else _LENGTH_WIDTHS["[]"], None, (element,))
    step = _plain(kind, field, version, flexible, inner_scope, role)
    if kind == "struct" and _holds(field.nullable, version):
        return Step(field.name, Form.NULLABLE_STRUCT, 1, None, (step,))
    return step


def _plain(kind: str, field: SchemaField, version: int, flexible: bool, scope: Scope, role: Role | None) -> Step:
    if kind == "struct":
        return Step(field.name, Form.STRUCT, 0, role, _steps(field.fields, version, flexible, scope))
    if kind in WIDTHS:
        return Step(field.name, Form.FIXED, WIDTHS[kind], role)
    form = Form.RECORDS if kind == "records" else Form.STRING
    return Step(field.name, form, 0 if flexible else _LENGTH_WIDTHS[kind], role)


def _holds(versions: tuple[int, int] | None, version: int) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]


def _until_last_role(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    end = max((place for place, step in enumerate(steps, 1) if _has_role(step)), default=0)
    return steps[:end]


def _has_role(step: Step) -> bool:
    return step.role is not None or any(map(_has_role, step.inner))
