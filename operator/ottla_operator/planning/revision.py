"""The revision of a cluster's brokers: their static settings with a hash, and the protocol version.

A broker whose hash differs from the target's is restarted; on Kubernetes the hash covers its pod, too
(`traits`). Dynamic settings are not part of it: the operator alters them in the cluster (`planning.cluster`),
like topic settings. They are not in a broker's file either, where a setting that was removed from the spec
would return. The hash also leaves out the operator's defaults, and the settings that differ from broker to
broker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

from ottla_operator.planning.observed import BrokerInstance, Observed
from ottla_operator.resources.cluster import BrokerClusterSpec
from ottla_operator.resources.cluster_status import UpgradeStatus
from ottla_operator.resources.common import config_texts
from ottla_operator.resources.settings import (
    DEFAULT_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    is_live_setting,
    release_of,
)

# Kafka's default is three replicas of each internal topic, which needs three brokers.
_INTERNAL_REPLICATION = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)
_INTERNAL_MIN_ISR = "transaction.state.log.min.isr"

T = TypeVar("T")

RESTART: Final = "restart"
"""The key in `traits` of the last requested restart (`planning.restarts`)."""
RESTART_OF_BROKER: Final = "restart of the broker"
"""The key in the settings that a broker runs with, when its platform requests its restart."""
VOLUMES: Final = "volumes"
"""The key in `traits` of the ids of a broker's volumes; without it, the broker has volume 0 only."""
ADVERTISED: Final = "advertised.listeners"
"""The key in the settings that a broker runs with, when its addresses for clients have changed."""


@dataclass(frozen=True, slots=True)
class Revision:
    """The configuration that brokers should run with."""

    hash: str
    static: Mapping[str, str]
    defaults: Mapping[str, str] = field(default_factory=dict)
    live: Mapping[str, str] = field(default_factory=dict)
    """The dynamic settings, which need no restart."""
    traits: Mapping[str, str] = field(default_factory=dict)
    """What a broker consists of on its platform besides its settings, such as its image and pod template."""

    @property
    def described(self) -> dict[str, str]:
        """Everything that may differ between two revisions, by the name that a restart reason has."""
        return {**self.static, **self.traits}

    @property
    def properties(self) -> dict[str, str]:
        """All settings for a broker's properties file."""
        return {**self.defaults, **self.static}


@dataclass(frozen=True, slots=True)
class PerBroker(Generic[T]):
    """A value for each broker."""

    default: T
    """That of the brokers of the cluster's own pool."""
    of_pools: Mapping[int, T] = field(default_factory=dict)
    """Those of the brokers of BrokerPools."""

    def of(self, broker: int) -> T:
        return self.of_pools.get(broker, self.default)


def combined_hash(targets: PerBroker[Revision]) -> str:
    """The hash of all target revisions, which names the roll: that of the only one, if they are the same."""
    hashes = {targets.default.hash, *(target.hash for target in targets.of_pools.values())}
    return _digest(sorted(hashes)) if len(hashes) > 1 else targets.default.hash


def target_revision(
    spec: BrokerClusterSpec,
    traits: Mapping[str, str] | None = None,
    version: str | None = None,
    restart: str = "",
    *,
    rack: str | None = None,
    brokers: int | None = None,
) -> Revision:
    """The revision of the spec. `traits`: what brokers consist of on their platform; `version`: the
    inter.broker.protocol.version to set, None for the brokers' default (`planning.revision`); `restart`: the
    last requested restart; `rack`: broker.rack, where it is the same for all; `brokers`: their number in the
    whole cluster, if not spec.replicas."""
    traits = {**(traits or {}), **({RESTART: restart} if restart else {})}
    volumes = [volume.id for volume in spec.storage.all_volumes]
    if volumes != [0]:
        traits[VOLUMES] = ",".join(map(str, volumes))
    settings = config_texts(spec.config)
    for listener in spec.listeners:
        settings |= listener.limits
    if version is not None:
        settings[PROTOCOL_VERSION] = version
    static = {name: settings[name] for name in sorted(settings) if not is_live_setting(name)}
    live = {name: settings[name] for name in sorted(settings) if is_live_setting(name)}
    if rack is not None:
        static["broker.rack"] = rack
    brokers = max(1, spec.replicas if brokers is None else brokers)
    defaults = dict.fromkeys(_INTERNAL_REPLICATION, str(min(3, brokers)))
    defaults[_INTERNAL_MIN_ISR] = str(min(2, brokers))
    of_all: dict[str, object] = {"static": static, "image": spec.image}
    if traits:
        of_all["traits"] = traits
    return Revision(
        hash=_digest(of_all),
        static=static,
        defaults=defaults,
        live=live,
        traits=traits,
    )


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def restart_reasons(target: Revision, running_hash: str, running: Mapping[str, str]) -> list[str]:
    """Why a broker that runs with `running` needs a restart; empty when it needs none."""
    if running_hash == target.hash:
        return []
    reasons = [
        f"a restart was requested: {target.traits.get(RESTART, '')}"
        if name == RESTART
        else "a restart of this broker was requested"
        if name == RESTART_OF_BROKER
        else f"{name} has changed"
        for name in _changed(target, running)
    ]
    return reasons or ["the revision has changed"]


def _changed(target: Revision, running: Mapping[str, str]) -> list[str]:
    wanted = target.described
    return sorted(name for name in {*running, *wanted} if running.get(name) != wanted.get(name))


def is_urgent(target: Revision, running_hash: str, running: Mapping[str, str]) -> bool:
    """Whether the restart of a broker that runs with `running` waits for no maintenance window and for no
    other cluster: it was requested, or clients from outside do not reach the broker any more."""
    if running_hash == target.hash:
        return False
    changed = set(_changed(target, running))
    return bool(changed & {RESTART, RESTART_OF_BROKER}) or changed == {ADVERTISED}


def is_requested_only(target: Revision, running_hash: str, running: Mapping[str, str]) -> bool:
    """Whether a broker that runs with `running` needs no restart besides the requested one."""
    return running_hash == target.hash or set(_changed(target, running)) <= {RESTART, RESTART_OF_BROKER}


# ---- `spec.version`: upgrades of inter.broker.protocol.version
#
# An upgrade has the two rolls of Kafka's upgrade notes. A new image is rolled out first, with the current
# protocol version; when all brokers run it, a second roll raises the version. A version is never lowered:
# brokers may have written data that older versions cannot read. The upgrade is planned before the target
# revision is computed, since the version is part of it.

IMAGE: Final = "image"
"""The key in `traits` of the brokers' image."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The decision about the protocol version in one reconciliation."""

    version: str | None = None
    """The version to set in the revision; None when it is the brokers' default or `spec.config` sets it."""
    status: UpgradeStatus | None = None
    running: str = ""
    """The lowest version of the running brokers; "" without brokers."""
    refused: str = ""


def version_of(instance: BrokerInstance, default: str = DEFAULT_PROTOCOL_VERSION) -> str:
    """The protocol version of a broker, such as `3.9`; "" when its settings are unknown."""
    if not instance.config_hash or (not instance.settings and instance.config_hash == "unknown"):
        return ""
    return release_of(instance.settings.get(PROTOCOL_VERSION, default))


def plan_upgrade(
    spec: BrokerClusterSpec,
    brokers: Collection[int],
    observed: Observed,
    traits: Mapping[str, str],
    before: UpgradeStatus | None = None,
    default: str | None = None,
) -> Upgrade:
    """`brokers`: the ids of all that the cluster is to have; `before`: the status' record of the upgrade;
    `default`: the version of brokers without the setting, if not DEFAULT_PROTOCOL_VERSION."""
    default = release_of(default or DEFAULT_PROTOCOL_VERSION)
    members = [observed.brokers[b] for b in brokers if b in observed.brokers]
    running = sorted({v for v in (version_of(b, default) for b in members) if v}, key=_number)
    oldest = running[0] if running else ""
    if PROTOCOL_VERSION in spec.config:
        return Upgrade(running=oldest)
    wanted = release_of(spec.version or default)

    def unless_default(version: str) -> str | None:
        return None if version == default else version

    if not running:
        return Upgrade(unless_default(wanted))
    newest = running[-1]
    if _number(wanted) < _number(newest):
        refused = f"brokers use inter.broker.protocol.version {newest}, which cannot be lowered to {wanted}"
        return Upgrade(unless_default(newest), None, oldest, refused)
    if wanted == newest:
        under_way = oldest != newest
        status = UpgradeStatus(from_version=oldest, to_version=wanted, phase="Protocol")
        return Upgrade(unless_default(wanted), status if under_way else None, oldest)
    image = traits.get(IMAGE, "")
    same_image = len(members) == len(brokers) and all(b.settings.get(IMAGE, "") == image for b in members)
    # A phase that has begun continues: the broker that is being restarted for it is out of service, too.
    begun = before is not None and (before.to_version, before.phase) == (wanted, "Protocol")
    phase: Literal["Binaries", "Protocol"] = "Binaries"
    if same_image and (begun or all(observed.in_service(b.id) for b in members)):
        phase = "Protocol"
    status = UpgradeStatus(from_version=oldest, to_version=wanted, phase=phase)
    return Upgrade(unless_default(wanted if phase == "Protocol" else newest), status, oldest)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
