"""What replication tells the rooms above it, and the requests that wait in them.

Implemented by the server's purgatory (and by recorders in tests); called by `partition` and `manager`.
Invariant: every call is made synchronously on the event loop, after the state it speaks of has changed, so a
listener may read the partition again at once. A listener must not raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class ReplicationListener(Protocol):
    """News of one partition."""

    def high_watermark_advanced(self, p: Partition) -> None:
        """Records became committed: consumers may read them, acks=all may be answered."""

    def log_appended(self, p: Partition) -> None:
        """The leader's log grew: followers may read it."""

    def changed(self, p: Partition) -> None:
        """What else an answer to a fetch depends on: the log's start, its truncation, a leader's epoch."""

    def became_leader(self, p: Partition) -> None:
        """This broker leads the partition from now on."""

    def became_follower(self, p: Partition) -> None:
        """This broker follows (anew, in a later epoch) from now on."""

    def stopped(self, p: Partition, deleted: bool) -> None:
        """The replica was taken from this broker; with `deleted` its log is gone too."""
