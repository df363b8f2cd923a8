"""Names that a topic may have: the rules of Kafka's org.apache.kafka.common.internals.Topic.

A topic's name becomes part of paths: of log directories, of nodes in ZooKeeper, and of lines in checkpoint
files. Every place where names enter a broker checks them here: requests of clients and of the controller,
nodes in ZooKeeper, checkpoint files and directories on disk.
"""

from __future__ import annotations

import re
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
TOPIC_NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Why no topic can be called that, in Kafka's words; None for a legal name."""
    if _LEGAL.fullmatch(name) and len(name) <= TOPIC_NAME_LENGTH_MAX and name not in (".", ".."):
        return None
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


def is_legal_topic_name(name: str) -> bool:
    return topic_name_problem(name) is None
