"""The revision of a cluster's brokers: their static settings, and a hash of them.

A broker whose hash differs from the target's is restarted; on Kubernetes the hash covers its pod, too
(`traits`). Dynamic settings are not part of it: the operator alters them in the cluster (`planning.cluster`),
like topic settings. They are not in a broker's file either, where a setting that was removed from the spec
would return. The hash also leaves out the operator's defaults, and the settings that differ from broker to
broker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla_operator.resources.cluster import BrokerClusterSpec
from ottla_operator.resources.common import config_texts
from ottla_operator.resources.settings import PROTOCOL_VERSION, is_live_setting

# Kafka's default is three replicas of each internal topic, which needs three brokers.
_INTERNAL_REPLICATION = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)
_INTERNAL_MIN_ISR = "transaction.state.log.min.isr"


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


def target_revision(
    spec: BrokerClusterSpec, traits: Mapping[str, str] | None = None, version: str | None = None
) -> Revision:
    """The revision of the spec. `traits`: what brokers consist of on their platform; `version`: the
    inter.broker.protocol.version to set, None for the brokers' default (`planning.versions`)."""
    settings = config_texts(spec.config)
    if version is not None:
        settings[PROTOCOL_VERSION] = version
    static = {name: settings[name] for name in sorted(settings) if not is_live_setting(name)}
    live = {name: settings[name] for name in sorted(settings) if is_live_setting(name)}
    replication = str(min(3, spec.replicas))
    defaults = dict.fromkeys(_INTERNAL_REPLICATION, replication)
    defaults[_INTERNAL_MIN_ISR] = str(min(2, spec.replicas))
    of_all: dict[str, object] = {"static": static, "image": spec.image}
    if traits:
        of_all["traits"] = dict(traits)
    return Revision(
        hash=hashlib.sha256(json.dumps(of_all, sort_keys=True).encode()).hexdigest()[:10],
        static=static,
        defaults=defaults,
        live=live,
        traits=dict(traits or {}),
    )


def restart_reasons(target: Revision, running_hash: str, running: Mapping[str, str]) -> list[str]:
    """Why a broker that runs with `running` needs a restart; empty when it needs none."""
    if running_hash == target.hash:
        return []
    wanted = target.described
    names = sorted(name for name in {*running, *wanted} if running.get(name) != wanted.get(name))
    return [f"{name} has changed" for name in names] or ["the revision has changed"]
