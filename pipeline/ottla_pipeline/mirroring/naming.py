"""The names of mirrored topics on the target, and the records that must not be mirrored because of loops.

Pure; called by the job, its tasks and the plan of topics. There are two policies:

- *prefix*: `orders` of the cluster `east` is `east.orders` everywhere else, as in MirrorMaker 2's
  DefaultReplicationPolicy. A topic whose prefixes include the target's alias came from there and is not
  mirrored, at any depth; so a ring of three clusters has no endless loop either.
- *identity*: the name stays. Names do not show a record's origin, so each record has the aliases of the
  clusters that it has passed in a header, and a record that has passed the target is not sent there again.

Invariant: `left_out` and the Java regular expression `left_out_regex` agree on every topic; Spark's source
uses the latter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ottla_pipeline.errors import JobStartError

Policy = Literal["prefix", "identity"]
Headers = Sequence[tuple[str, str | bytes | None]]

PATH_HEADER: Final = "ottla-mirror-path"
"""Aliases of the clusters that a record has passed, oldest first, with commas between. Identity only."""
ALIAS: Final = r"[a-zA-Z0-9_-]+"
TOPIC_NAME_LENGTH_MAX: Final = 249
_INTERNAL: Final = r"__.*|.*[.-]internal"
"""Kafka's own topics, and those that mirrors and Connect keep for themselves: no one else's business."""


class NameRefused(JobStartError):
    """The policy does not permit to mirror a topic; the message says which one and why."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The naming policy between two clusters, by their aliases."""

    source: str
    target: str
    policy: Policy = "prefix"
    separator: str = "."
    provenance: bool = True
    """Identity: keep the path in a header. Without it nothing but the user prevents a loop."""

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

    def left_out(self, topic: str) -> bool:
        """Whether the topic is never mirrored, even if the pattern matches."""
        return re.fullmatch(_INTERNAL, topic) is not None or self.comes_from_target(topic)

    def left_out_regex(self) -> str:
        """`left_out` as a regular expression, the same in Java and in Python."""
        if self.policy == "identity":
            return _INTERNAL
        between = re.escape(self.separator)
        return f"{_INTERNAL}|(?:.*{between})?{re.escape(self.target)}{between}.*"

    def source_pattern(self, pattern: str) -> str:
        """The pattern of Spark's subscription: the user's (Java) pattern without the topics that are left
        out. It has anchors, because Spark accepts a match anywhere in the name."""
        return f"^(?!(?:{self.left_out_regex()})$)(?:{pattern})$"

    def check_named(self, topics: Sequence[str]) -> None:
        """Raises NameRefused for a topic that the configuration names and that cannot be mirrored."""
        for topic in topics:
            if self.comes_from_target(topic):
                raise NameRefused(
                    f"topic {topic!r} came from {self.target}: mirroring it back would create a loop"
                )
            if self.left_out(topic):
                raise NameRefused(f"topic {topic!r} is internal to its cluster and cannot be mirrored")
            self.target_topic(topic)


def path_of(headers: Headers) -> tuple[str, ...]:
    """The aliases of the clusters that a record has passed, from its headers."""
    path: list[str] = []
    for name, value in headers:
        if name == PATH_HEADER and isinstance(value, bytes):
            path += [alias for alias in value.decode("ascii", "replace").split(",") if alias not in path]
    return tuple(path)


def forwarded_headers(headers: Headers | None, naming: Naming) -> list[tuple[str, str | bytes | None]] | None:
    """A record's headers on the target, with the source's alias added to its path; None if it has passed
    the target."""
    path = path_of(headers or ())
    if naming.target in path:
        return None
    longer = path if naming.source in path else (*path, naming.source)
    kept = [header for header in headers or () if header[0] != PATH_HEADER]
    return [*kept, (PATH_HEADER, ",".join(longer).encode())]
