"""Plans Quota resources: limits of clients, applied through the Admin API and corrected when they differ.

Called by `reconcile` with all Quotas at once: of two for one entity, the older one owns it. A resource owns
the limits that it names, and those that it named before until they are removed (`status.managedLimits`,
written before they are set). Limits of the entity that other tools have set are shown in the status and not
changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ottla_operator.conditions import no, unknown, yes
from ottla_operator.planning.observed import Observed, QuotaEntity
from ottla_operator.planning.steps import AlterQuota, ResourcePlan
from ottla_operator.resources import BrokerCluster, Quota, QuotaStatus
from ottla_operator.resources.common import UnmanagedSetting
from ottla_operator.resources.quota import Limits, spec_name

DEFAULT_CLIENT: QuotaEntity = (None, "<default>")
"""The entity of `spec.defaultQuotas` of a BrokerCluster: the one of lowest precedence."""


def plan_quotas(
    quotas: Iterable[Quota], observed: Observed, usable: bool, cluster: BrokerCluster | None = None
) -> dict[str, ResourcePlan[QuotaStatus]]:
    """Plans by resource key. `usable`: the cluster has a controller that responds; `cluster`: its spec may
    have default quotas."""
    owners: dict[QuotaEntity, Quota | BrokerCluster] = {}
    if cluster is not None and cluster.spec.default_quotas is not None:
        owners[DEFAULT_CLIENT] = cluster
    plans: dict[str, ResourcePlan[QuotaStatus]] = {}
    limits = observed.kafka.quotas if usable else None
    for quota in sorted(quotas, key=lambda q: q.metadata.age_key):
        owner = owners.setdefault(entity_of(quota), quota)
        if owner is not quota:
            plans[quota.key] = _conflicting(quota, owner)
        elif quota.metadata.deleting:
            plans[quota.key] = _plan_deletion(quota, limits)
        else:
            plans[quota.key] = _plan(quota, limits)
    return plans


def entity_of(quota: Quota) -> QuotaEntity:
    """The quota entity of a resource."""
    return (quota.spec.entity.user, quota.spec.entity.client_id)


def wanted_limits(limits: Limits) -> dict[str, float]:
    """The limits by Kafka's names, which are those of the model's fields."""
    return {name: value for name, value in limits if value is not None}


@dataclass(frozen=True, slots=True)
class OwnedLimits:
    """The change of an entity's limits that is due, and the record for the status."""

    due: tuple[AlterQuota, ...] = ()
    record: Limits | None = None
    """The limits that the resource owns and must remove later."""
    recorded: bool = True
    """The status has this record already, so that the change may be made."""

    @property
    def steps(self) -> tuple[AlterQuota, ...]:
        """The steps to execute in this reconciliation."""
        return self.due if self.recorded else ()


def plan_limits(
    entity: QuotaEntity, spec: Limits | None, record: Limits | None, current: Mapping[str, float]
) -> OwnedLimits:
    """`record`: the limits that the resource owns according to its status."""
    wanted = {} if spec is None else wanted_limits(spec)
    before = {} if record is None else wanted_limits(record)
    changed = {name: value for name, value in wanted.items() if current.get(name) != value}
    deleted = tuple(sorted(name for name in before if name not in wanted and name in current))
    owned = {**{name: before[name] for name in deleted}, **wanted}
    return OwnedLimits(
        (AlterQuota(entity, changed, deleted),) if changed or deleted else (),
        Limits.model_validate(owned) if owned else None,
        changed.keys() <= before.keys(),
    )


def plan_defaults(cluster: BrokerCluster, observed: Observed, *, elsewhere: bool = False) -> OwnedLimits:
    """Set the default client's limits to those of the cluster's spec, and remove those that the operator
    set when the spec has none. `elsewhere`: a Quota resource owns them."""
    before, wanted = cluster.status.default_quotas, cluster.spec.default_quotas
    limits = observed.kafka.quotas
    if wanted is None and (before is None or elsewhere):
        return OwnedLimits()
    if limits is None or not observed.kafka.has_controller:
        return OwnedLimits((), before)
    owned = plan_limits(DEFAULT_CLIENT, wanted, before, limits.get(DEFAULT_CLIENT, {}))
    return owned if cluster.metadata.acted_upon else replace(owned, record=before)


def quota_owns_default_client(quotas: Iterable[Quota]) -> bool:
    """Whether a Quota resource sets the limits of the default client."""
    return any(entity_of(quota) == DEFAULT_CLIENT and not quota.metadata.deleting for quota in quotas)


def _conflicting(quota: Quota, owner: Quota | BrokerCluster) -> ResourcePlan[QuotaStatus]:
    if quota.metadata.deleting:
        return ResourcePlan(quota, (no("Ready", "Deleting"),), quota.status, deletion_complete=True)
    message = f"{owner.key}, which is older, sets the limits of this entity"
    status = QuotaStatus(overridden_by=owner.metadata.name)
    findings = (no("Ready", "ResourceConflict", message), no("Effective", "ResourceConflict"))
    return ResourcePlan(quota, findings, status)


def _plan(
    quota: Quota, limits: Mapping[QuotaEntity, Mapping[str, float]] | None
) -> ResourcePlan[QuotaStatus]:
    if limits is None:
        reason = "ClusterNotReady"
        findings = (
            no("Ready", reason, "the cluster is not reachable"),
            unknown("Effective", reason),
        )
        return ResourcePlan(quota, findings, quota.status, keep_status=True)
    entity = entity_of(quota)
    current = limits.get(entity, {})
    owned = plan_limits(entity, quota.spec.limits, quota.status.managed_limits, current)
    status = QuotaStatus(
        applied_limits=quota.status.applied_limits if owned.due else quota.spec.limits,
        managed_limits=owned.record if quota.metadata.acted_upon else quota.status.managed_limits,
        unmanaged_limits=_unmanaged(current, owned.record),
    )
    if not owned.due:
        return ResourcePlan(
            quota, (yes("Ready", "Applied", "the limits are set"), yes("Effective", "Enforced")), status
        )
    findings = (no("Ready", "Applying", str(owned.due[0])), no("Effective", "Applying"))
    return ResourcePlan(quota, findings, status, owned.steps)


def _unmanaged(current: Mapping[str, float], record: Limits | None) -> list[UnmanagedSetting]:
    owned = {} if record is None else wanted_limits(record)
    return [
        UnmanagedSetting(name=spec_name(name), value=f"{value:.15g}")
        for name, value in sorted(current.items())
        if name not in owned
    ]


def _plan_deletion(
    quota: Quota, limits: Mapping[QuotaEntity, Mapping[str, float]] | None
) -> ResourcePlan[QuotaStatus]:
    findings = (no("Ready", "Deleting", "the limits are being removed"),)
    if not quota.metadata.managed:
        return ResourcePlan(quota, findings, quota.status, deletion_complete=True)
    if limits is None:
        return ResourcePlan(quota, findings, quota.status)
    record = quota.status.managed_limits or quota.spec.limits
    owned = plan_limits(entity_of(quota), None, record, limits.get(entity_of(quota), {}))
    return ResourcePlan(quota, findings, quota.status, owned.due, deletion_complete=not owned.due)
