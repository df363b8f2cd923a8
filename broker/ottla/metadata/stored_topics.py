"""Topics as the metadata store has them now: what a broker asks before it obeys a doubtful request.

Called by the handler of the controller's requests. The controller's epochs do not tell a late duplicate of a
request about a deleted topic from a request about the topic that was created again under its name: the leader
epoch begins at 0 again. The store does, since the controller writes before it sends.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore, get_many
from ottla.metadata.znodes import TopicAssignment

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic's node, and whether its deletion was requested."""

    node: TopicAssignment
    deleting: bool

    def is_of(self, topic_id: UUID | None) -> bool:
        """Whether it is the topic of that id. A topic or a replica from before KIP-516 has none (None), and
        is taken for the one of its name."""
        return topic_id is None or self.node.topic_id is None or topic_id == self.node.topic_id

    def assigns(self, topic_id: UUID | None, partition: int, broker: int) -> bool:
        """Whether a replica of that topic belongs on the broker."""
        return (
            not self.deleting and self.is_of(topic_id) and broker in self.node.partitions.get(partition, ())
        )

    def keeps(self, topic_id: UUID | None, partition: int, broker: int) -> bool:
        """Whether it belongs there, and no reassignment takes it away (KIP-455)."""
        leaving = self.node.removing.get(partition, ())
        return self.assigns(topic_id, partition, broker) and broker not in leaving


StoredTopics = dict[str, StoredTopic | None]
"""By name; None where there is no such topic. A topic whose node cannot be decoded is left out."""


async def read_topics(store: MetadataStore, names: Collection[str]) -> StoredTopics:
    """The topics as they are after every write that preceded the call. Raises StoreUnavailable."""
    if not names:
        return {}
    await store.sync()
    paths = [path for name in names for path in (znodes.topic_path(name), znodes.delete_topic_path(name))]
    nodes = await get_many(store, paths)
    topics: StoredTopics = {}
    for name, found, deletion in zip(names, nodes[::2], nodes[1::2], strict=True):
        try:
            topics[name] = found and StoredTopic(
                znodes.decode_topic(name, found[0]), deleting=deletion is not None
            )
        except znodes.InvalidNode as error:
            log.error("a topic's node cannot be read: %s", error)
    return topics
