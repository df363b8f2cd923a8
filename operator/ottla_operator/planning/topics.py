"""Plans Topic resources: creation, settings, partitions, replication factor and deletion.

Called by `reconcile` with all Topics at once: of two for one topic, the older one owns it and the other is
`ResourceConflict`. A resource owns a topic that it created or adopted (`status.topicId`), or one that matches
its spec, which also covers a status that was lost after a creation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ottla_operator.conditions import Finding, no, unknown, yes
from ottla_operator.planning.cluster import Placement
from ottla_operator.planning.observed import Observed, TopicState
from ottla_operator.planning.placement import Changes, Layout, Unplaceable, batch, change_factor
from ottla_operator.planning.scaling import target_assignment
from ottla_operator.planning.settings import OwnedSettings, is_same, plan_settings
from ottla_operator.planning.steps import (
    AlterTopicConfig,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Reassign,
    ResourcePlan,
    ResourceStep,
)
from ottla_operator.resources import Topic, TopicStatus
from ottla_operator.resources.common import config_texts
from ottla_operator.resources.settings import THROTTLED_REPLICAS
from ottla_operator.resources.topic import ReplicasChange, TopicDefaults


@dataclass(frozen=True, slots=True)
class Defaults:
    """The brokers' defaults for a topic without partitions or replicas in its spec."""

    partitions: int = 1
    replicas: int = 1
    min_isr: int = 1

    @classmethod
    def of(cls, broker_settings: Mapping[str, str]) -> Defaults:
        """The defaults in the brokers' settings."""
        return cls(
            partitions=int(broker_settings.get("num.partitions", "1")),
            replicas=int(broker_settings.get("default.replication.factor", "1")),
            min_isr=int(broker_settings.get("min.insync.replicas", "1")),
        )


@dataclass(slots=True)
class _Change:
    """Collects the steps and findings of one topic."""

    steps: list[ResourceStep] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    refused: str = ""
    config_synced: Finding = field(default_factory=lambda: yes("ConfigSynced", "Synced"))
    replicas_changing: Finding = field(default_factory=lambda: no("ReplicasChanging", "AsDesired"))
    replicas_change: ReplicasChange | None = None
    moves: Changes = field(default_factory=dict)


def plan_topics(
    topics: Iterable[Topic],
    observed: Observed,
    placement: Placement,
    defaults: Defaults,
    busy: Collection[tuple[str, int]] = (),
    for_unset: TopicDefaults | None = None,
) -> dict[str, ResourcePlan[TopicStatus]]:
    """Plans by resource key. `busy`: partitions that this reconciliation reassigns for other reasons;
    `for_unset`: the cluster's `topicDefaults`."""
    plans: dict[str, ResourcePlan[TopicStatus]] = {}
    for_unset = for_unset or TopicDefaults()
    owners: dict[str, Topic] = {}
    # The placement of each new topic takes those before it into account.
    layout = Layout(target_assignment(observed), placement.may_hold, placement.closed)
    for unset in sorted(topics, key=lambda t: t.metadata.age_key):
        state = observed.kafka.topics.get(unset.topic_name)
        kept = _partitions_kept(unset, state, for_unset)
        topic = unset.with_defaults(for_unset.model_copy(update={"partitions": None}) if kept else for_unset)
        owner = owners.setdefault(topic.topic_name, topic)
        if topic.metadata.deleting:
            plans[topic.key] = _plan_deletion(topic, owner, observed, placement)
        elif owner is not topic:
            message = f"{owner.key}, which is older, owns topic {topic.topic_name}"
            plans[topic.key] = _not_ready(topic, "ResourceConflict", message)
        elif not placement.usable:
            plan = _not_ready(topic, "ClusterNotReady", "the cluster is not reachable")
            plans[topic.key] = replace(plan, keep_status=True)
        else:
            if state is None:
                plan = _plan_creation(topic, placement, defaults, layout)
                factor = defaults.replicas
            else:
                plan = _plan_existing(topic, state, placement, layout, busy)
                factor = state.replication_factor
            plans[topic.key] = replace(plan, warnings=(*kept, *_warnings(topic, factor, defaults)))
    return plans


def _partitions_kept(topic: Topic, state: TopicState | None, for_unset: TopicDefaults) -> tuple[str, ...]:
    """A warning when the topic has more partitions than the cluster's default says, and keeps them."""
    wanted, has = for_unset.partitions, len(state.partitions) if state is not None else 0
    if topic.spec.partitions is not None or wanted is None or wanted >= has:
        return ()
    return (f"the cluster's topicDefaults.partitions is {wanted}, and the topic keeps its {has}",)


def _warnings(topic: Topic, factor: int, defaults: Defaults) -> tuple[str, ...]:
    """Warnings beside those of the spec alone. `factor`: the replication factor without one in the spec."""
    given = config_texts(topic.spec.config).get("min.insync.replicas")
    if given is not None and topic.spec.replicas is not None:
        return ()
    least, replicas = int(given or defaults.min_isr), topic.spec.replicas or factor
    if least <= replicas:
        return ()
    name = "spec.config[min.insync.replicas]" if given is not None else "the cluster's min.insync.replicas"
    return (f"{name} is {least}, and the topic has {replicas} replicas: no write with acks=all can succeed",)


def _not_ready(topic: Topic, reason: str, message: str) -> ResourcePlan[TopicStatus]:
    """A plan without steps: Ready is False for the reason, and the status stays."""
    findings = (
        no("Ready", reason, message),
        unknown("ConfigSynced", reason),
        unknown("ReplicasChanging", reason),
    )
    return ResourcePlan(topic, findings, topic.status)


def _plan_deletion(
    topic: Topic, owner: Topic, observed: Observed, placement: Placement
) -> ResourcePlan[TopicStatus]:
    findings = (no("Ready", "Deleting", f"topic {topic.topic_name} is being deleted"),)
    state = observed.kafka.topics.get(topic.topic_name)
    ours = owner is topic and topic.metadata.managed and topic.status.topic_id != ""
    if not ours or topic.spec.reclaim_policy == "Retain":
        return ResourcePlan(topic, findings, topic.status, deletion_complete=True)
    if not placement.usable:
        return ResourcePlan(topic, findings, topic.status)
    if state is None or state.topic_id != topic.status.topic_id:
        return ResourcePlan(topic, findings, topic.status, deletion_complete=True)
    return ResourcePlan(topic, findings, topic.status, (DeleteTopic(topic.topic_name),))


def _plan_creation(
    topic: Topic, placement: Placement, defaults: Defaults, layout: Layout
) -> ResourcePlan[TopicStatus]:
    partitions = topic.spec.partitions or defaults.partitions
    factor = topic.spec.replicas or defaults.replicas
    if placement.coming:
        names = ", ".join(map(str, placement.coming))
        return _not_ready(topic, "WaitingForBrokers", f"waiting for broker {names} to start")
    if len(placement.taking) < factor:
        message = f"{factor} replicas need {factor} brokers; {len(placement.taking)} are in service"
        return _not_ready(topic, "NotEnoughBrokers", message)
    assignment = None
    if placement.cordoned:
        # Kafka would place replicas on cordoned brokers, too.
        placed = layout.place_new(topic.topic_name, 0, partitions, factor)
        assignment = dict(enumerate(placed))
    step = CreateTopic(topic.topic_name, partitions, factor, config_texts(topic.spec.config), assignment)
    plan = _not_ready(topic, "Creating", f"{step}")
    return ResourcePlan(topic, plan.findings, plan.status, (step,))


def _plan_existing(
    topic: Topic,
    state: TopicState,
    placement: Placement,
    layout: Layout,
    busy: Collection[tuple[str, int]],
) -> ResourcePlan[TopicStatus]:
    if not _is_owned(topic, state):
        message = (
            f"topic {state.name} exists and differs from the spec ({len(state.partitions)} partitions of "
            f"{state.replication_factor} replicas); set spec.adopt: true to take it over"
        )
        return _not_ready(topic, "ResourceConflict", message)
    change = _Change()
    settings = _settings(topic, state)
    _plan_config(state, settings, change)
    _plan_partitions(topic, state, placement, layout, change)
    _plan_replicas(topic, state, placement, layout, change, busy)
    status = TopicStatus(
        topic_name=state.name,
        topic_id=state.topic_id,
        partitions=len(state.partitions),
        replicas=state.replication_factor,
        under_replicated_partitions=sum(partition.under_replicated for partition in state.partitions),
        replicas_change=change.replicas_change,
        managed_settings=settings.managed,
        unmanaged_settings=settings.unmanaged,
    )
    findings = (_ready(state, change), change.config_synced, change.replicas_changing)
    return ResourcePlan(topic, findings, status, tuple(change.steps), moves=change.moves)


def _ready(state: TopicState, change: _Change) -> Finding:
    if change.refused:
        return no("Ready", "NotSupported", change.refused)
    if change.pending:
        return no("Ready", "Progressing", "; ".join(change.pending))
    offline = [partition.name for partition in state.partitions if partition.leader < 0]
    if offline:
        return no("Ready", "PartitionsOffline", f"partitions without a leader: {', '.join(offline[:3])}")
    count = len(state.partitions)
    return yes("Ready", "Created", f"{count} partitions of {state.replication_factor} replicas")


def _is_owned(topic: Topic, state: TopicState) -> bool:
    if topic.spec.adopt or topic.status.topic_id:
        return True
    spec, wanted = topic.spec, config_texts(topic.spec.config)
    current = {n: v for n, v in state.config.items() if n in wanted or n not in THROTTLED_REPLICAS}
    return (
        spec.partitions in (None, len(state.partitions))
        and spec.replicas in (None, state.replication_factor)
        and current.keys() == wanted.keys()
        and all(is_same(current[name], value) for name, value in wanted.items())
    )


def _settings(topic: Topic, state: TopicState) -> OwnedSettings:
    """The changes of settings. The throttled replicas belong to the tool that moves them, unless the spec
    sets them."""
    wanted = config_texts(topic.spec.config)
    managed = topic.status.managed_settings
    ignored = [n for n in THROTTLED_REPLICAS if n not in wanted and n not in managed]
    current = {n: v for n, v in state.config.items() if n not in ignored}
    return plan_settings(wanted, current, managed, topic.metadata)


def _plan_config(state: TopicState, settings: OwnedSettings, change: _Change) -> None:
    if not settings.is_due:
        return
    names = ", ".join([*settings.changed, *settings.deleted])
    if settings.recorded:
        change.steps.append(AlterTopicConfig(state.name, settings.changed, settings.deleted))
    change.pending.append(f"applying {names}")
    change.config_synced = no("ConfigSynced", "Applying", names)


def _plan_partitions(
    topic: Topic, state: TopicState, placement: Placement, layout: Layout, change: _Change
) -> None:
    wanted, has = topic.spec.partitions, len(state.partitions)
    if wanted is None or wanted == has:
        return
    if wanted < has:
        change.refused = (
            f"spec.partitions is {wanted}, and the topic has {has}: Kafka cannot remove partitions"
        )
        return
    change.pending.append(f"growing from {has} to {wanted} partitions")
    if any(partition.reassigning for partition in state.partitions):
        return
    assignment = None
    if placement.cordoned:
        factor = state.replication_factor
        if len(placement.taking) < factor:
            return
        assignment = layout.place_new(state.name, has, wanted - has, factor)
    change.steps.append(CreatePartitions(state.name, wanted, assignment))


def _plan_replicas(
    topic: Topic,
    state: TopicState,
    placement: Placement,
    layout: Layout,
    change: _Change,
    busy: Collection[tuple[str, int]],
) -> None:
    wanted = topic.spec.replicas
    if wanted is None:
        return
    off = [partition for partition in state.partitions if len(partition.target_replicas) != wanted]
    growing = [
        p for p in state.partitions if p.reassigning and len(p.target_replicas) == wanted and p not in off
    ]
    if not off and (not growing or topic.status.replicas_change is None):
        return
    message = f"{len(off) + len(growing)} of {len(state.partitions)} partitions still to change"
    try:
        changes: Changes = change_factor(off, wanted, layout.replicas, placement.may_hold, placement.closed)
    except Unplaceable as error:
        change.replicas_changing = no("ReplicasChanging", "Blocked", str(error))
        change.replicas_change = ReplicasChange(target_replicas=wanted, state="Blocked", message=str(error))
        change.refused = f"spec.replicas: {error}"
        return
    ready = {key: replicas for key, replicas in changes.items() if key not in busy and key[0] == state.name}
    change.moves = ready
    if ready:
        change.steps.append(Reassign(batch(ready), f"replication factor of {state.name} to {wanted}"))
    change.pending.append(f"changing to {wanted} replicas: {message}")
    change.replicas_changing = yes("ReplicasChanging", "Reassigning", message)
    change.replicas_change = ReplicasChange(target_replicas=wanted, state="Ongoing", message=message)
