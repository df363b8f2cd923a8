"""The target of a mirror: the names of topics there, the records that must not be mirrored because of
loops, and the description of the target for tasks.

Pure; called by the job, its tasks and the plan of topics. There are two naming policies:

- *prefix*: `orders` of the cluster `east` is `east.orders` everywhere else, as in MirrorMaker 2's
  DefaultReplicationPolicy. A topic whose prefixes include the target's alias came from there and is not
  mirrored, at any depth; so a ring of three clusters has no endless loop either.
- *identity*: the name stays, as in MirrorMaker 2's IdentityReplicationPolicy. Names do not show a record's
  origin, so each record has the aliases of the clusters that it has passed in a header, and a record that has
  passed the target is not sent there again.

Invariants: `excludes` and the Java regular expression `excluded_regex` agree on every topic; Spark's source
uses the latter. `Target` and `MirroredTopic` are frozen and hashable: a worker stores its writers under these
values, so a writer is never used for a topic that has changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ottla_pipeline.errors import JobStartError
from ottla_pipeline.mirroring.translation import Lineage

Policy = Literal["prefix", "identity"]
Headers = Sequence[tuple[str, str | bytes | None]]

PATH_HEADER: Final = "ottla-mirror-path"
"""Aliases of the clusters that a record has passed, oldest first, with commas between. Identity only."""
ALIAS: Final = r"[a-zA-Z0-9_-]+"
TOPIC_NAME_LENGTH_MAX: Final = 249
_INTERNAL: Final = r"__.*|.*[.-]internal"
"""Kafka's own topics, and the internal ones of mirrors and Connect."""


class NameRefused(JobStartError):
    """The policy does not permit to mirror a topic; the message says which one and why."""


@dataclass(frozen=True, slots=True)
class ReplicationPolicy:
    """The naming policy between two clusters, by their aliases."""

    source: str
    target: str
    policy: Policy = "prefix"
    separator: str = "."
    provenance: bool = True
    """Identity: keep the path in a header. Without it the mirror does not prevent loops."""

    @property
    def marks_records(self) -> bool:
        return self.policy == "identity" and self.provenance

    def target_topic(self, topic: str) -> str:
        """The topic's name on the target. Raises NameRefused if Kafka would reject it."""
        if self.policy == "identity":
            return topic
        name = f"{self.source}{self.separator}{topic}"
        if len(name) > TOPIC_NAME_LENGTH_MAX:
            raise NameRefused(
                f"topic {topic!r} would be {name!r} on {self.target}: "
                f"{len(name)} characters, of {TOPIC_NAME_LENGTH_MAX} that Kafka allows"
            )
        return name

    def comes_from_target(self, topic: str) -> bool:
        """Whether the topic's name shows that its records came from the target."""
        return self.policy == "prefix" and self.target in topic.split(self.separator)[:-1]

    def excludes(self, topic: str) -> bool:
        """Whether the topic is never mirrored, even if the pattern matches."""
        return re.fullmatch(_INTERNAL, topic) is not None or self.comes_from_target(topic)

    def excluded_regex(self) -> str:
        """`excludes` as a regular expression, the same in Java and in Python."""
        if self.policy == "identity":
            return _INTERNAL
        between = re.escape(self.separator)
        return f"{_INTERNAL}|(?:.*{between})?{re.escape(self.target)}{between}.*"

    def source_pattern(self, pattern: str) -> str:
        """The pattern of Spark's subscription: the user's (Java) pattern without the topics that are
        excluded. It has anchors, because Spark accepts a match anywhere in the name."""
        return f"^(?!(?:{self.excluded_regex()})$)(?:{pattern})$"

    def check_named(self, topics: Sequence[str]) -> None:
        """Raises NameRefused for a topic that the configuration names and that cannot be mirrored."""
        for topic in topics:
            if self.comes_from_target(topic):
                raise NameRefused(
                    f"topic {topic!r} came from {self.target}: mirroring it back would create a loop"
                )
            if self.excludes(topic):
                raise NameRefused(f"topic {topic!r} is internal to its cluster and cannot be mirrored")
            self.target_topic(topic)


def path_of(headers: Headers) -> tuple[str, ...]:
    """The aliases of the clusters that a record has passed, from its headers."""
    path: list[str] = []
    for name, value in headers:
        if name == PATH_HEADER and isinstance(value, bytes):
            path += [alias for alias in value.decode("ascii", "replace").split(",") if alias not in path]
    return tuple(path)


def forwarded_headers(
    headers: Headers | None, naming: ReplicationPolicy
) -> list[tuple[str, str | bytes | None]] | None:
    """A record's headers on the target, with the source's alias added to its path; None if it has passed
    the target."""
    path = path_of(headers or ())
    if naming.target in path:
        return None
    longer = path if naming.source in path else (*path, naming.source)
    kept = [header for header in headers or () if header[0] != PATH_HEADER]
    return [*kept, (PATH_HEADER, ",".join(longer).encode())]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one transaction; the first one that is reached ends it."""

    records_max: int = 20_000
    bytes_max: int = 16 * 2**20
    timeout_ms: int = 120_000
    """The transaction time-out: the maximum wait of read_committed readers after the death of a mirror."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target cluster, and how to write to it."""

    mirror: str
    """The mirror's name there: its consumer group, and the prefix of its transactional ids."""
    settings: tuple[tuple[str, str], ...]
    """librdkafka's, `bootstrap.servers` among them."""
    naming: ReplicationPolicy
    syncs: str
    """The topic of the offset syncs."""
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
