"""Quota resources: checked for conflicts, and shown as not yet enforced, since the brokers enforce none yet.

Called by `reconcile` with all Quotas at once: two may not be for one entity, the older has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla_operator.conditions import Finding, no, yes
from ottla_operator.resources import Quota, QuotaStatus


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    findings: tuple[Finding, ...]
    status: QuotaStatus
    done: bool = False


def plan_quotas(quotas: Iterable[Quota]) -> dict[str, QuotaPlan]:
    """Plans by resource key."""
    owners: dict[tuple[str | None, str | None], Quota] = {}
    plans: dict[str, QuotaPlan] = {}
    for quota in sorted(quotas, key=lambda q: q.metadata.age_key):
        entity = (quota.spec.entity.user, quota.spec.entity.client_id)
        owner = owners.setdefault(entity, quota)
        if quota.metadata.deleting:
            plans[quota.key] = QuotaPlan((no("Ready", "Deleting"),), quota.status, done=True)
        elif owner is not quota:
            message = f"this entity belongs to the older resource {owner.key}"
            status = QuotaStatus(overridden_by=owner.metadata.name)
            findings = (no("Ready", "ResourceConflict", message), no("Effective", "ResourceConflict"))
            plans[quota.key] = QuotaPlan(findings, status)
        else:
            findings = (
                yes("Ready", "Accepted", "the limits are valid"),
                no("Effective", "NotYetEnforced", "the brokers do not enforce quotas yet"),
            )
            plans[quota.key] = QuotaPlan(findings, QuotaStatus())
    return plans
