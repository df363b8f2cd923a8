"""Request bodies and their validation. Called by `api`; an invalid body is refused with the path of the
error."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from starlette.requests import Request

from ottla.client.registry import Reference
from ottla_pipeline.registry.checks import LEVELS, POLICIES
from ottla_pipeline.registry.decisions import MODES, SchemaRequest
from ottla_pipeline.registry.errors import Refused
from ottla_pipeline.registry.records import dump

BODY_BYTES_MAX: Final = 8 << 20
AnyBody = TypeVar("AnyBody", bound="Body")


class Body(BaseModel):
    """The base model. Unknown attributes are ignored: clients may be newer than the registry."""

    model_config = ConfigDict(extra="ignore")


class ReferenceBody(Body):
    name: StrictStr
    subject: StrictStr
    version: StrictInt


class Metadata(Body):
    tags: dict[StrictStr, list[StrictStr]] | None = None
    properties: dict[StrictStr, StrictStr] | None = None
    sensitive: list[StrictStr] | None = None


class Rule(Body):
    model_config = ConfigDict(extra="allow")
    name: StrictStr
    doc: StrictStr | None = None
    kind: StrictStr | None = None
    mode: StrictStr | None = None
    type: StrictStr | None = None
    tags: list[StrictStr] | None = None
    params: dict[StrictStr, StrictStr] | None = None
    expr: StrictStr | None = None
    on_success: StrictStr | None = Field(default=None, alias="onSuccess")
    on_failure: StrictStr | None = Field(default=None, alias="onFailure")
    disabled: StrictBool | None = None


class RuleSet(Body):
    model_config = ConfigDict(extra="allow")
    migration: list[Rule] | None = Field(default=None, alias="migrationRules")
    domain: list[Rule] | None = Field(default=None, alias="domainRules")
    encoding: list[Rule] | None = Field(default=None, alias="encodingRules")


def _as_sent(part: Body | None) -> dict[str, Any] | None:
    """The body without absent and null attributes; None if none are left."""
    found = None if part is None else part.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
    return found or None


class SchemaBody(Body):
    text: StrictStr = Field(default="", alias="schema")
    type: StrictStr | None = Field(default=None, alias="schemaType")
    references: list[ReferenceBody] | None = None
    metadata: Metadata | None = None
    rule_set: RuleSet | None = Field(default=None, alias="ruleSet")
    id: StrictInt | None = None
    version: StrictInt | None = None

    def wanted(self) -> SchemaRequest:
        references = tuple(Reference(each.name, each.subject, each.version) for each in self.references or ())
        return SchemaRequest(
            self.text,
            self.type or "AVRO",
            references,
            None if (metadata := _as_sent(self.metadata)) is None else dump(metadata),
            None if (rules := _as_sent(self.rule_set)) is None else dump(rules),
            None if self.id in (None, -1) else self.id,
            None if self.version in (None, 0, -1) else self.version,
        )


class ConfigBody(Body):
    """A CONFIG request. Unknown settings are refused, because they would have no effect."""

    model_config = ConfigDict(extra="forbid")
    compatibility: StrictStr | None = None
    level: StrictStr | None = Field(default=None, alias="compatibilityLevel")
    normalize: StrictBool | None = None
    alias: StrictStr | None = None
    policy: StrictStr | None = Field(default=None, alias="compatibilityPolicy")
    group: StrictStr | None = Field(default=None, alias="compatibilityGroup")
    default_metadata: Metadata | None = Field(default=None, alias="defaultMetadata")
    override_metadata: Metadata | None = Field(default=None, alias="overrideMetadata")
    default_rules: RuleSet | None = Field(default=None, alias="defaultRuleSet")
    override_rules: RuleSet | None = Field(default=None, alias="overrideRuleSet")

    def changes(self) -> dict[str, Any]:
        """The settings in the request; null resets a setting."""
        found: dict[str, Any] = {}
        if self.model_fields_set & {"compatibility", "level"}:
            given = self.compatibility or self.level
            if given is not None and given.upper() not in LEVELS:
                raise Refused(42203, f"Compatibility level {given}: must be one of {', '.join(LEVELS)}.")
            found["compatibilityLevel"] = None if given is None else given.upper()
        if self.policy is not None and self.policy.upper() not in POLICIES:
            raise Refused(42203, f"Compatibility policy {self.policy}: must be one of {', '.join(POLICIES)}.")
        for field in self.model_fields_set - {"compatibility", "level"}:
            value = getattr(self, field)
            name = type(self).model_fields[field].alias or field
            found[name] = _as_sent(value) if isinstance(value, Body) else value
        if found.get("compatibilityPolicy"):
            found["compatibilityPolicy"] = found["compatibilityPolicy"].upper()
        return found


class ModeBody(Body):
    mode: StrictStr

    def checked(self) -> str:
        if self.mode.upper() not in MODES:
            raise Refused(42204, f"Mode {self.mode}: must be one of {', '.join(MODES)}.")
        return self.mode.upper()


async def read(request: Request, model: type[AnyBody]) -> AnyBody:
    """Reads and validates a body. Raises Refused: 413 if it is too large, 422 if it does not match the
    model."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES_MAX:
            raise Refused(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    try:
        return model.model_validate_json(bytes(data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(422, f"The body: {where + ': ' if where else ''}{first['msg']}") from None
