"""Conditions as the Kubernetes API conventions define them.

Planners report `Finding`s, which have no time; `merge` turns them into the `Condition`s of a status. Called
by `step_executor` for every resource, and by the stores for a resource with an invalid spec.

Invariants: one condition per type; `lastTransitionTime` moves only when `status` does; `reason` is CamelCase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

ConditionStatus = Literal["True", "False", "Unknown"]

_REASON = re.compile(r"^[A-Z][A-Za-z0-9]*$")


def iso_time(now_ms: int) -> str:
    """The time as Kubernetes writes it: RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_iso_time(text: str) -> int:
    """Milliseconds since the epoch of a time written by `iso_time`; ValueError when it is none."""
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() * 1000)


class Condition(BaseModel):
    """One entry of `status.conditions` (metav1.Condition)."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid"
    )

    type: str = Field(description="The type of the condition, such as Ready.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: str = Field(min_length=1, max_length=1024, description="Why, as one word for programs.")
    message: str = Field(default="", description="Why, as a sentence for people.")
    last_transition_time: str = Field(
        json_schema_extra={"format": "date-time"}, description="When the status changed last."
    )
    observed_generation: int = Field(
        default=0, description="The generation of the resource that the condition is about."
    )


# Types for which True is the unusual status; for all others it is False.
_TRUE_IS_UNUSUAL = frozenset(
    {"Rolling", "Scaling", "ReplicasChanging", "ReconciliationPaused", "Failing", "Contested"}
)


def is_unusual(condition: Condition) -> bool:
    """Whether the condition differs from that of a resource in its normal state."""
    return condition.status == ("True" if condition.type in _TRUE_IS_UNUSUAL else "False")


@dataclass(frozen=True, slots=True)
class Finding:
    """A planner's result for one condition: a `Condition` without time and generation."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""

    def __post_init__(self) -> None:
        assert _REASON.match(self.reason), f"the reason {self.reason!r} is not CamelCase"


def yes(type_: str, reason: str, message: str = "") -> Finding:
    """A finding with status True."""
    return Finding(type_, "True", reason, message)


def no(type_: str, reason: str, message: str = "") -> Finding:
    """A finding with status False."""
    return Finding(type_, "False", reason, message)


def unknown(type_: str, reason: str, message: str = "") -> Finding:
    """A finding with status Unknown."""
    return Finding(type_, "Unknown", reason, message)


def merge(
    previous: Sequence[Condition],
    findings: Iterable[Finding],
    *,
    generation: int,
    now_ms: int,
    keep_others: bool = False,
) -> list[Condition]:
    """The conditions after `findings`, in their order.

    A planner's findings are complete: conditions of types that it no longer reports are removed.
    `keep_others` keeps them, for a caller that reports one condition only.
    """
    before = {condition.type: condition for condition in previous}
    merged: dict[str, Condition] = {}
    for finding in findings:
        assert finding.type not in merged, f"{finding.type} is reported twice"
        old = before.get(finding.type)
        same = old is not None and old.status == finding.status
        merged[finding.type] = Condition(
            type=finding.type,
            status=finding.status,
            reason=finding.reason,
            message=finding.message,
            last_transition_time=old.last_transition_time if same and old else iso_time(now_ms),
            observed_generation=generation,
        )
    if keep_others:
        merged.update({type_: old for type_, old in before.items() if type_ not in merged})
    return list(merged.values())


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of a type; None without one."""
    return next((condition for condition in conditions if condition.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition of this type exists and is True."""
    condition = find(conditions, type_)
    return condition is not None and condition.status == "True"
