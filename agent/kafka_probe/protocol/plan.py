"""Builds plans: the decoder's steps through the bytes of one API version in one direction.

A plan is Kafka's definition reduced to the fields of the version, each with its role in our facts (see roles.py).
Tagged fields that the version does not have are skipped by their size. A plan ends with its last field that has a role:
a frame is complete once its facts are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from kafka_probe.protocol.api_keys import ApiKey
from kafka_probe.protocol.facts import Fact, MeasureKind, Status
from kafka_probe.protocol.kernel_allow_list import HIDDEN, LIMITS
from kafka_probe.protocol.roles import Part, Role, Scope, role_of, scopes_inside
from kafka_probe.protocol.schemas import WIDTHS, Api, SchemaField, apis, fields_of


class Form(Enum):
    """The form of a field on the wire."""

    FIXED = auto()
    STRING = auto()  # a length, then that many bytes
    LENGTH = auto()  # of a string or of bytes that stay in the kernel
    RECORDS = auto()  # a length, then the kernel's stub
    ARRAY = auto()
    STRUCT = auto()
    NULLABLE_STRUCT = auto()  # one byte, negative for null, then the struct
    TAGS = auto()


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One field. `size` is its width (FIXED) or the width of its length (0: compact), in bytes.

    `opens` contains the scopes that a struct opens; `inner` contains the fields of a struct, the one step for all
    elements of an array, or tagged fields.
    """

    name: str
    form: Form
    size: int = 0
    signed: bool = True
    role: Role | None = None
    scope: Scope = Scope.FRAME
    opens: tuple[Scope, ...] = ()
    inner: tuple[PlanStep, ...] = ()
    tag: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a frame, and its status after the last one."""

    steps: tuple[PlanStep, ...]
    done: Status

    def only(self, kinds: Collection[MeasureKind]) -> Plan:
        """Return the plan for callers that need measures of these kinds only."""
        return Plan(_until_last_role(tuple(_only(kinds, step) for step in self.steps)), self.done)


_HIDDEN_LENGTHS = {"Reason": MeasureKind.REASON_BYTES}
_LENGTH_WIDTHS = {"string": 2, "bytes": 4, "records": 4, "[]": 4}

# Flexible headers do not encode the client id compactly, so that any broker can read any ApiVersions request.
_CLIENT_ID = PlanStep("ClientId", Form.STRING, 2, role=Fact.CLIENT_ID)
_TAGS = PlanStep("TaggedFields", Form.TAGS)
_CONTROLLED_SHUTDOWN_0 = (ApiKey.CONTROLLED_SHUTDOWN, 0)  # the only request whose header has no client id
_UNSUPPORTED_VERSION = b"\x00\x23"


_ERROR = PlanStep("ErrorCode", Form.FIXED, 2, role=Part.ERROR)


def answered_version(api_key: int, api_version: int, data: bytes) -> int:
    """Return the version of a response, which may differ from the version of its request.

    A broker that does not know the version of an ApiVersions request answers in version 0 with an error code, which is
    the first field in every version (KIP-511).
    """
    return 0 if api_key == ApiKey.API_VERSIONS and data[:2] == _UNSUPPORTED_VERSION else api_version


def plan_for(response: bool, api_key: int, api_version: int, hidden: Mapping[str, frozenset[str]] = HIDDEN) -> Plan:
    """Return the plan for a version, also if the API or the version does not exist.

    hidden: strings of which only the length was copied, as HIDDEN of kernel_allow_list.py.
    """
    api = apis().get(api_key)
    if api is None or api_version not in api.versions:
        # Headers of later versions also begin with the client id, whatever their body is.
        steps = (_ERROR,) if api_key == ApiKey.API_VERSIONS else ()
        return Plan(steps if response else (_CLIENT_ID,), Status.UNKNOWN_VERSION if api else Status.UNKNOWN_API)
    if LIMITS.get(api.name, (0, 0))[response]:
        return full_plan(response, api, api_version, hidden)
    return Plan(() if response else _header(response, api, api_version)[:1], Status.HEADER_ONLY)


def full_plan(response: bool, api: Api, api_version: int, hidden: Mapping[str, frozenset[str]] = HIDDEN) -> Plan:
    """Return the plan for header and body, whether or not the body is copied to user space."""
    within = _Within(api_version, api.flexible(api_version), api.name, hidden.get(api.name, frozenset()))
    body = _steps(fields_of(api, response=response, version=api_version), within)
    return Plan(_until_last_role(_header(response, api, api_version) + body), Status.COMPLETE)


def _header(response: bool, api: Api, api_version: int) -> tuple[PlanStep, ...]:
    if response:
        return (_TAGS,) if api.flexible_response_header(api_version) else ()
    if (api.key, api_version) == _CONTROLLED_SHUTDOWN_0:
        return ()
    return (_CLIENT_ID, _TAGS) if api.flexible(api_version) else (_CLIENT_ID,)


@dataclass(frozen=True, slots=True)
class _Within:
    """The context of a field."""

    version: int
    flexible: bool
    parent: str
    hidden: frozenset[str]
    scope: Scope = Scope.FRAME


def _steps(fields: tuple[SchemaField, ...], within: _Within) -> tuple[PlanStep, ...]:
    present = [field for field in fields if _holds(field.versions, within.version)]
    tagged = [field for field in present if _holds(field.tagged, within.version)]
    steps = tuple(_step(field, within) for field in present if field not in tagged)
    if not within.flexible:
        return steps
    return (*steps, PlanStep("TaggedFields", Form.TAGS, inner=tuple(_step(field, within) for field in tagged)))


def _step(field: SchemaField, within: _Within) -> PlanStep:
    kind = field.type.removeprefix("[]")
    nullable = _holds(field.nullable, within.version)
    tag = field.tag if _holds(field.tagged, within.version) else None
    if field.type.startswith("[]"):
        element = _plain(kind, field, within)
        return PlanStep(
            field.name, Form.ARRAY, 0 if within.flexible else _LENGTH_WIDTHS["[]"], inner=(element,), tag=tag
        )
    if kind == "struct" and nullable:
        return PlanStep(field.name, Form.NULLABLE_STRUCT, 1, inner=(_plain(kind, field, within),), tag=tag)
    return _plain(kind, field, within, tag)


def _plain(kind: str, field: SchemaField, within: _Within, tag: int | None = None) -> PlanStep:
    if kind == "struct":
        members = frozenset(member.name for member in field.fields if _holds(member.versions, within.version))
        opens = scopes_inside(field.name, members, within.scope)
        scope = opens[-1] if opens else within.scope
        inner = _steps(field.fields, replace(within, parent=field.name, scope=scope))
        return PlanStep(field.name, Form.STRUCT, opens=opens, inner=inner, tag=tag)
    role = role_of(field.name, within.parent, within.scope)
    if kind in WIDTHS:
        return PlanStep(field.name, Form.FIXED, WIDTHS[kind], not kind.startswith("u"), role, within.scope, tag=tag)
    form = Form.RECORDS if kind == "records" else Form.STRING
    if kind == "bytes" or (kind == "string" and field.name in within.hidden):
        form, role = Form.LENGTH, _HIDDEN_LENGTHS.get(field.name, MeasureKind.HIDDEN_BYTES)
    return PlanStep(
        field.name, form, 0 if within.flexible else _LENGTH_WIDTHS[kind], role=role, scope=within.scope, tag=tag
    )


def _holds(versions: tuple[int, int] | None, version: int) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]


def _only(kinds: Collection[MeasureKind], step: PlanStep) -> PlanStep:
    wanted = not isinstance(step.role, MeasureKind) or step.role in kinds
    inner = tuple(_only(kinds, each) for each in step.inner)
    # A length of fixed size that nobody wants is bytes to skip.
    form = Form.FIXED if step.form is Form.LENGTH and step.size and not wanted else step.form
    return replace(step, form=form, role=step.role if wanted else None, inner=inner)


def _until_last_role(steps: tuple[PlanStep, ...]) -> tuple[PlanStep, ...]:
    end = max((index for index, step in enumerate(steps, 1) if _has_role(step)), default=0)
    return steps[:end]


def _has_role(step: PlanStep) -> bool:
    return step.role is not None or any(map(_has_role, step.inner))
