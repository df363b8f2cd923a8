"""What a connector's user is told of rebalances: Kafka 0.8.2's ConsumerRebalanceListener.

Implemented by users, called by the connector's two coordinations through `call`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from ottla.client.core.types import TopicPartition
from ottla.protocol.grouping import indexes_by_topic

log = logging.getLogger(__name__)


class ConsumerRebalanceListener(Protocol):
    """Given to `ConsumerConnector.set_consumer_rebalance_listener`."""

    def before_releasing_partitions(self, partition_ownership: Mapping[str, set[int]]) -> None:
        """Called at the beginning of a rebalance, in a thread of the connector's, with the partitions that
        this consumer still owns, by topic. Reading has stopped, the streams give out nothing more that was
        there before, and `commit_offsets` still counts. An exception is logged."""
        ...


def call(listener: ConsumerRebalanceListener | None, owned: Iterable[TopicPartition]) -> None:
    if listener is None:
        return
    ownership = {topic: set(indexes) for topic, indexes in indexes_by_topic(owned).items()}
    try:
        listener.before_releasing_partitions(ownership)
    except Exception:
        log.exception("before_releasing_partitions failed")
