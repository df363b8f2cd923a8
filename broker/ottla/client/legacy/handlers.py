"""What the older producer sends, and the hooks of its way out (`EventHandler`, `CallbackHandler`).

Implemented by users, called by `producer` and `send_thread`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class KeyedMessage(NamedTuple):
    """What `Producer.send` takes; key and message as the encoders like them."""

    topic: str
    message: Any
    key: Any = None
    part_key: Any = None
    """What the partition is chosen by, in the key's place; it is not sent."""

    @property
    def partition_key(self) -> Any:
        """What the partitioner is given; None lets any partition do."""
        return self.key if self.part_key is None else self.part_key


class EventHandler:
    """Dispatches batches: the producer's own encodes them, chooses partitions and sends. A class of its own
    takes them elsewhere, or first does something to them. It is made without arguments."""

    def init(self, settings: Mapping[str, object]) -> None:
        """Called once, before all else."""

    def handle(self, messages: Sequence[KeyedMessage]) -> None:
        """In sync mode an exception goes to the caller of `send`, in async mode to the log."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, after all else."""


class CallbackHandler:
    """Looks into the async producer's queue; each hook here leaves things as they are. `before_enqueue` and
    `after_enqueue` are called by whoever sends, the others by the thread that empties the queue."""

    def init(self, settings: Mapping[str, object]) -> None:
        """Called once, before all else."""

    def before_enqueue(self, message: KeyedMessage) -> KeyedMessage:
        """What is to enter the queue."""
        return message

    def after_enqueue(self, message: KeyedMessage, added: bool) -> None:
        """`added`: False when the queue was full."""

    def after_dequeuing_existing_data(self, message: KeyedMessage) -> Sequence[KeyedMessage]:
        """What is to enter the batch in the message's place: none, one or several."""
        return [message]

    def before_sending_data(self, messages: Sequence[KeyedMessage]) -> Sequence[KeyedMessage]:
        """What is to be encoded and sent of a batch. Of the producer's own event handler."""
        return messages

    def last_batch_before_close(self) -> Sequence[KeyedMessage]:
        """What is still to be sent with the last batch."""
        return []

    def close(self) -> None:
        """Called once, after all else."""
