"""`spec.version`: upgrades of inter.broker.protocol.version, in the two rolls of Kafka's upgrade notes.

Pure; called by `reconcile` before the revision is computed, since the version is part of it. A new image is
rolled out first, with the current protocol version; when all brokers run it, a second roll raises the
version. A version is never lowered: brokers may have written data that older versions cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ottla_operator.planning.observed import BrokerInstance, Observed
from ottla_operator.resources.cluster import BrokerClusterSpec, UpgradeStatus
from ottla_operator.resources.settings import DEFAULT_PROTOCOL_VERSION, PROTOCOL_VERSION, release_of

IMAGE: Final = "image"
"""The key in `traits` of the brokers' image."""


@dataclass(frozen=True, slots=True)
class Upgrade:
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
    observed: Observed,
    traits: Mapping[str, str],
    before: UpgradeStatus | None = None,
    default: str | None = None,
) -> Upgrade:
    """`before`: the status' record of the upgrade. `default`: the version of brokers without the setting,
    if not DEFAULT_PROTOCOL_VERSION."""
    default = release_of(default or DEFAULT_PROTOCOL_VERSION)
    members = [observed.brokers[b] for b in range(spec.replicas) if b in observed.brokers]
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
    same_image = len(members) == spec.replicas and all(b.settings.get(IMAGE, "") == image for b in members)
    # A phase that has begun continues: the broker that is being restarted for it is out of service, too.
    begun = before is not None and (before.to_version, before.phase) == (wanted, "Protocol")
    phase: Literal["Binaries", "Protocol"] = "Binaries"
    if same_image and (begun or all(observed.in_service(b.id) for b in members)):
        phase = "Protocol"
    status = UpgradeStatus(from_version=oldest, to_version=wanted, phase=phase)
    return Upgrade(unless_default(wanted if phase == "Protocol" else newest), status, oldest)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
