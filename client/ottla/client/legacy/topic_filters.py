"""Topic filters: a regular expression for the topics that a connector reads, or does not read.

Used by connectors and applications. The expression matches whole names. As in Kafka 0.8, a comma means `|`,
and blanks and surrounding quotes are removed. It has Python's syntax: expressions that Java writes in another
way (`\\p{Alpha}`, say) do not work in a group with members in Java.
"""

from __future__ import annotations

import re
from typing import ClassVar

from ottla.protocol.topics import INTERNAL_TOPICS


class TopicFilter:
    """The base of Whitelist and Blacklist."""

    pattern: ClassVar[str]
    """The name of this kind of filter in the registration of a consumer in ZooKeeper."""

    def __init__(self, regex: str) -> None:
        """Raises ValueError for an invalid regular expression."""
        self.regex = regex.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            self._compiled = re.compile(self.regex)
        except re.error as problem:
            raise ValueError(f"{self.regex!r} is not a regular expression: {problem}") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regex!r})"

    def matches(self, topic: str) -> bool:
        """Whether the regular expression matches the whole name."""
        return self._compiled.fullmatch(topic) is not None

    def allows(self, topic: str, *, exclude_internal_topics: bool = True) -> bool:
        """Whether the topic is read."""
        raise NotImplementedError

    def as_pattern(self) -> str:
        """A regular expression that matches the whole names of allowed topics."""
        raise NotImplementedError


class Whitelist(TopicFilter):
    """Allows the topics that match."""

    pattern = "white_list"

    def allows(self, topic: str, *, exclude_internal_topics: bool = True) -> bool:
        return self.matches(topic) and not (exclude_internal_topics and topic in INTERNAL_TOPICS)

    def as_pattern(self) -> str:
        return self.regex


class Blacklist(TopicFilter):
    """Allows the topics that do not match."""

    pattern = "black_list"

    def allows(self, topic: str, *, exclude_internal_topics: bool = True) -> bool:
        return not self.matches(topic) and not (exclude_internal_topics and topic in INTERNAL_TOPICS)

    def as_pattern(self) -> str:
        return rf"(?!(?:{self.regex})\Z).*"
