"""`spec.version`: the protocol version that brokers speak among themselves, raised as Kafka documents it.

Pure; called by `reconcile` before the revision is made, for the version is part of it. A new image rolls
first, with the protocol version that the brokers speak now; when all run it, a second roll raises the
version. What was raised anywhere is not lowered again: brokers may have written what older ones cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ottla_operator.planning.observed import BrokerInstance, Observed
from ottla_operator.resources.cluster import BrokerClusterSpec, UpgradeStatus
from ottla_operator.resources.settings import DEFAULT_PROTOCOL_VERSION, PROTOCOL_VERSION, release_of

IMAGE: Final = "image"
"""The trait that says what binaries a broker runs."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    version: str | None = None
    """For the revision: what to tell the brokers; None: nothing, for it is theirs, or the settings say so."""
    status: UpgradeStatus | None = None
    running: str = ""
    """The oldest that a broker speaks; "" while there are none."""
    refused: str = ""


def version_of(instance: BrokerInstance, default: str = DEFAULT_PROTOCOL_VERSION) -> str:
    """As `3.9`; "" of a broker of which nobody knows what it runs with."""
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
    """`before`: how far the status says it is. `default`: what brokers speak that are told nothing, where it
    is not the brokers' own default."""
    default = release_of(default or DEFAULT_PROTOCOL_VERSION)
    members = [observed.brokers[b] for b in range(spec.replicas) if b in observed.brokers]
    running = sorted({v for v in (version_of(b, default) for b in members) if v}, key=_number)
    oldest = running[0] if running else ""
    if PROTOCOL_VERSION in spec.config:
        return Upgrade(running=oldest)
    wanted = release_of(spec.version or default)

    def told(version: str) -> str | None:
        return None if version == default else version

    if not running:
        return Upgrade(told(wanted))
    newest = running[-1]
    if _number(wanted) < _number(newest):
        refused = f"brokers speak version {newest} already, and cannot go back to {wanted}"
        return Upgrade(told(newest), None, oldest, refused)
    if wanted == newest:
        under_way = oldest != newest
        status = UpgradeStatus(from_version=oldest, to_version=wanted, phase="Protocol")
        return Upgrade(told(wanted), status if under_way else None, oldest)
    image = traits.get(IMAGE, "")
    same_image = len(members) == spec.replicas and all(b.settings.get(IMAGE, "") == image for b in members)
    # The one that is bounced for it is out of service, too: what has begun goes on.
    begun = before is not None and (before.to_version, before.phase) == (wanted, "Protocol")
    phase: Literal["Binaries", "Protocol"] = "Binaries"
    if same_image and (begun or all(observed.in_service(b.id) for b in members)):
        phase = "Protocol"
    status = UpgradeStatus(from_version=oldest, to_version=wanted, phase=phase)
    return Upgrade(told(wanted if phase == "Protocol" else newest), status, oldest)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
