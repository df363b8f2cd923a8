"""Topics by pattern: what a connector is to read, said by what is allowed or what is denied.

Used by connectors and by users. The pattern is a regular expression for whole names; as in Kafka 0.8, commas
stand for `|`, and blanks and quotes around it, which property files bring, are dropped. It is Python's: what
Java's writes otherwise (`\\p{Alpha}`, say) cannot be shared with members in Java.
"""

from __future__ import annotations

import re
from typing import ClassVar

from ottla.protocol.topic_names import INTERNAL_TOPICS


class TopicFilter:
    """Whitelist or Blacklist."""

    pattern: ClassVar[str]
    """How the group's registry calls this kind."""

    def __init__(self, regex: str) -> None:
        """Raises ValueError for what is no regular expression."""
        self.regex = regex.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            self._compiled = re.compile(self.regex)
        except re.error as problem:
            raise ValueError(f"{self.regex!r} is no regular expression: {problem}") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regex!r})"

    def matches(self, topic: str) -> bool:
        """Whether the regular expression fits the whole name."""
        return self._compiled.fullmatch(topic) is not None

    def allows(self, topic: str, *, exclude_internal_topics: bool = True) -> bool:
        """Whether a topic is to be read."""
        raise NotImplementedError

    def as_pattern(self) -> str:
        """A regular expression for the whole names of topics that are allowed."""
        raise NotImplementedError


class Whitelist(TopicFilter):
    """The topics that match."""

    pattern = "white_list"

    def allows(self, topic: str, *, exclude_internal_topics: bool = True) -> bool:
        return self.matches(topic) and not (exclude_internal_topics and topic in INTERNAL_TOPICS)

    def as_pattern(self) -> str:
        return self.regex


class Blacklist(TopicFilter):
    """The topics that do not match."""

    pattern = "black_list"

    def allows(self, topic: str, *, exclude_internal_topics: bool = True) -> bool:
        return not self.matches(topic) and not (exclude_internal_topics and topic in INTERNAL_TOPICS)

    def as_pattern(self) -> str:
        return rf"(?!(?:{self.regex})\Z).*"
