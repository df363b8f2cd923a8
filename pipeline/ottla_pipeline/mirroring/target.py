"""What a task needs to know of the target: plain data from the driver, sent to the workers.

Called by the job (which creates it), the tasks and the writer. Frozen and hashable: a worker stores its
writers under these values, so a writer is never used for a topic that has changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_pipeline.mirroring.naming import Naming
from ottla_pipeline.mirroring.translation import Lineage


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one transaction; the first one that is reached ends it."""

    records_max: int = 20_000
    bytes_max: int = 16 * 2**20
    timeout_ms: int = 120_000
    """How long the broker lets a transaction be open: what a dead mirror's readers wait for at most."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target cluster, and how to write to it."""

    mirror: str
    """The mirror's own name there: its consumer group, and the beginning of its transactional ids."""
    settings: tuple[tuple[str, str], ...]
    """librdkafka's, `bootstrap.servers` among them."""
    naming: Naming
    syncs: str
    """The topic that keeps the offsets' translation."""
    limits: Limits


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """One topic, on both clusters."""

    source: str
    target: str
    lineage: Lineage
    message_bytes_max: int
    """The target's `max.message.bytes`."""


def mirror_name(name: str, source: str) -> str:
    """A mirror's unique name on the target; an alias has no dot."""
    return f"ottla-mirror-{name}.{source}"


def syncs_topic(mirror: str) -> str:
    return f"{mirror}.syncs.internal"
