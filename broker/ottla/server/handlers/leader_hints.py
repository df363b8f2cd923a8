"""Current leaders in Produce and Fetch errors, which save clients a metadata refresh (KIP-951)."""

from __future__ import annotations

from ottla.metadata.cache import BrokerEndpoint, MetadataCache
from ottla.protocol.errors import ErrorCode

HINTED_ERRORS = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


class LeaderHints:
    """Collects the current leaders of one response and their endpoints; none if not `enabled` (old
    versions)."""

    __slots__ = ("_cache", "_listener", "enabled", "endpoints")

    def __init__(self, cache: MetadataCache, listener: str, *, enabled: bool) -> None:
        self._cache = cache
        self._listener = listener
        self.enabled = enabled
        self.endpoints: dict[int, BrokerEndpoint] = {}

    def leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        """(leader id, leader epoch) of a partition whose leader is alive; adds its endpoint."""
        metadata = self._cache.partition(topic, partition) if self.enabled else None
        if metadata is None:
            return None
        endpoint = self._cache.broker(metadata.leader, self._listener)
        if endpoint is None:
            return None
        self.endpoints[endpoint.id] = endpoint
        return metadata.leader, metadata.leader_epoch
