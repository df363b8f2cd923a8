"""Topics in the metadata store, read to verify requests of the controller that may be late duplicates.

Called by the handler of the controller's requests. Epochs cannot distinguish a late duplicate of a request
for a deleted topic from a request for a new topic with the same name, because leader epochs start at 0 again.
The store can, because the controller writes to it before it sends requests.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore
from ottla.metadata.znodes import TopicAssignment

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic's node, and whether its deletion was requested."""

    node: TopicAssignment
    deleting: bool

    def is_of(self, topic_id: UUID | None) -> bool:
        """Whether the topic has this id. A topic or a replica from before KIP-516 has none, and matches by
        its name."""
        return topic_id is None or self.node.topic_id is None or topic_id == self.node.topic_id

    def assigns(self, topic_id: UUID | None, partition: int, broker: int) -> bool:
        """Whether the broker is a replica of the topic's partition, and the topic is not being deleted."""
        return (
            not self.deleting and self.is_of(topic_id) and broker in self.node.partitions.get(partition, ())
        )

    def keeps(self, topic_id: UUID | None, partition: int, broker: int) -> bool:
        """Whether it is assigned to the broker, and no reassignment removes it (KIP-455)."""
        leaving = self.node.removing.get(partition, ())
        return self.assigns(topic_id, partition, broker) and broker not in leaving


StoredTopics = dict[str, StoredTopic | None]
"""Topics by name; None for topics that do not exist. Topics with an invalid node are left out."""


async def read_topics(store: MetadataStore, names: Collection[str]) -> StoredTopics:
    """The topics as they are after every write that preceded the call. Raises StoreUnavailable."""
    if not names:
        return {}
    await store.sync()
    paths = [path for name in names for path in (znodes.topic_path(name), znodes.delete_topic_path(name))]
    nodes = await store.get_many(paths)
    topics: StoredTopics = {}
    for name, found, deletion in zip(names, nodes[::2], nodes[1::2], strict=True):
        try:
            topics[name] = found and StoredTopic(
                znodes.decode_topic(name, found[0]), deleting=deletion is not None
            )
        except znodes.InvalidNode as error:
            log.error("Ignoring a topic: %s", error)
    return topics
