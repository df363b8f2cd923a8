"""What the status of a resource says whose spec is not valid. Used by every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ottla_operator.conditions import find, merge, no
from ottla_operator.resources import KINDS
from ottla_operator.resources.common import Status


def invalid_status(
    kind: str, metadata: Mapping[str, Any], status: Mapping[str, Any], problems: Sequence[str], now_ms: int
) -> dict[str, Any]:
    """The status with Ready=False InvalidSpec, and everything else as it was."""
    status_model = KINDS[kind].model_fields["status"].annotation
    assert isinstance(status_model, type)
    assert issubclass(status_model, Status)
    parsed = status_model.model_validate(status)
    finding = no("Ready", "InvalidSpec", "; ".join(problems))
    generation = int(metadata.get("generation", 0))
    conditions = merge(parsed.conditions, [finding], generation=generation, now_ms=now_ms, keep_others=True)
    ready = find(conditions, "Ready")
    assert ready is not None
    ordered = [ready, *(condition for condition in conditions if condition is not ready)]
    return parsed.model_copy(update={"conditions": ordered}).model_dump(by_alias=True, exclude_none=True)
