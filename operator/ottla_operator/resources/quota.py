"""Quota: client quotas of a user, of a client id, of both, or of a default entity (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ottla_operator.resources.common import (
    AGE,
    CLUSTER,
    LISTED_BY_NAME,
    READY,
    UNMANAGED_SETTINGS,
    ClusterRef,
    Definition,
    Model,
    PrinterColumn,
    Problem,
    Resource,
    Rule,
    Status,
    UnmanagedSetting,
    condition_column,
    immutable,
    rules,
)


class Entity(Model):
    """The quota entity: names, or `<default>` for users or client ids without quotas of their own."""

    model_config = rules(
        Rule(
            "user, clientId or both are required; `<default>` is allowed for each",
            "has(self.user) || has(self.clientId)",
        )
    )

    user: str | None = Field(
        default=None,
        min_length=1,
        description="A user's name in principals, as in a User's status.username, or `<default>`. Default: "
        "every user.",
    )
    client_id: str | None = Field(
        default=None, min_length=1, description="A client id, or `<default>`. Default: every client id."
    )

    @model_validator(mode="after")
    def _has_part(self) -> Entity:
        if self.user is None and self.client_id is None:
            raise ValueError("user, clientId or both are required; `<default>` is allowed for each")
        return self


# Kafka has a long for these and a double for the others.
_ByteRate = Annotated[int, Field(ge=1, le=2**63 - 1, strict=False)]


class Limits(Model):
    producer_byte_rate: _ByteRate | None = Field(default=None, description="Bytes per second.")
    consumer_byte_rate: _ByteRate | None = Field(default=None, description="Bytes per second.")
    request_percentage: float | None = Field(
        default=None, gt=0, strict=False, description="Percent of one network or request thread's time."
    )
    controller_mutation_rate: float | None = Field(
        default=None, gt=0, strict=False, description="Partition mutations per second."
    )

    def given(self) -> dict[str, float]:
        return {spec_name(name): value for name, value in self if value is not None}


def spec_name(limit: str) -> str:
    """The name in a spec of one of Kafka's quotas."""
    field = Limits.model_fields.get(limit)
    return limit if field is None or field.alias is None else field.alias


_LIMITS = [str(field.alias) for field in Limits.model_fields.values()]


class QuotaSpec(Model):
    model_config = rules(
        Rule(
            f"limits is empty; at least one of {', '.join(_LIMITS)} is required",
            " || ".join(f"has(self.limits.{name})" for name in _LIMITS),
        )
    )

    cluster_ref: ClusterRef = Field(description="The cluster of the quota.")
    entity: Entity = Field(description="Whom the limits apply to.")
    limits: Limits = Field(description="The limits; at least one.")


class QuotaStatus(Status):
    applied_limits: Limits | None = Field(default=None, description="The limits in Kafka.")
    managed_limits: Limits | None = Field(
        default=None,
        description="Limits that the resource sets: those of the spec, and former ones until removed.",
    )
    unmanaged_limits: list[UnmanagedSetting] = Field(
        default_factory=list, description=UNMANAGED_SETTINGS, json_schema_extra=LISTED_BY_NAME
    )
    overridden_by: str | None = Field(
        default=None, description="A Quota of the same entity that has precedence."
    )


class Quota(Resource[QuotaSpec, QuotaStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="Quota",
        plural="quotas",
        short_names=("oq",),  # `quota` is Kubernetes' ResourceQuota
        condition_types=("Ready", "Effective"),
        columns=(
            READY,
            condition_column("Effective", "Effective"),
            PrinterColumn("User", "string", ".spec.entity.user"),
            PrinterColumn("Client", "string", ".spec.entity.clientId"),
            CLUSTER,
            AGE,
        ),
        transition_rules=(immutable("spec.clusterRef", "cluster_ref"), immutable("spec.entity", "entity")),
    )

    kind: Literal["Quota"]
    status: QuotaStatus = Field(default_factory=QuotaStatus)

    @property
    def deletes_in_kafka(self) -> bool:
        return True

    def problems(self) -> Iterator[Problem]:
        if not self.spec.limits.given():
            yield Problem("spec.limits", f"is empty; at least one of {', '.join(_LIMITS)} is required")
