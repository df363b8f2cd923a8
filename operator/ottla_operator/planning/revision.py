"""The revision of a cluster's brokers: their static settings, and a hash of them.

A broker whose hash is not the target's is bounced; on Kubernetes the hash covers its pod, too (`traits`).
What brokers take while they run is not static: it is
kept in the cluster for all of them, and altered there (`planning.cluster`), as topics' settings are. It is
not in a broker's own file either, where it would come back when it is taken out of the spec. Left out of
the hash, too: what the operator fills in by default, and what only tells brokers apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla_operator.resources.cluster import BrokerClusterSpec
from ottla_operator.resources.common import config_texts
from ottla_operator.resources.settings import PROTOCOL_VERSION, is_live_setting

# Three replicas of each internal topic are Kafka's default, and impossible on fewer brokers.
_INTERNAL_REPLICATION = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)
_INTERNAL_MIN_ISR = "transaction.state.log.min.isr"


@dataclass(frozen=True, slots=True)
class Revision:
    """What brokers should run with."""

    hash: str
    static: Mapping[str, str]
    defaults: Mapping[str, str] = field(default_factory=dict)
    live: Mapping[str, str] = field(default_factory=dict)
    """What all brokers take without a bounce."""
    traits: Mapping[str, str] = field(default_factory=dict)
    """What brokers are made of on their platform."""

    @property
    def described(self) -> dict[str, str]:
        """What tells two revisions apart, by the words in which a bounce is explained."""
        return {**self.static, **self.traits}

    @property
    def properties(self) -> dict[str, str]:
        """All settings, for a broker that starts now."""
        return {**self.defaults, **self.static}


def target_revision(
    spec: BrokerClusterSpec, traits: Mapping[str, str] | None = None, version: str | None = None
) -> Revision:
    """The revision that the spec asks for. `traits`: what brokers are made of on their platform; `version`:
    the protocol version to tell them, where it is not their own (`planning.versions`)."""
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
    """Why a broker that runs with `running` needs a bounce; empty when it does not."""
    if running_hash == target.hash:
        return []
    wanted = target.described
    names = sorted(name for name in {*running, *wanted} if running.get(name) != wanted.get(name))
    return [f"{name} is changed" for name in names] or ["its revision is not the target's"]
