"""What the older clients raise of their own, under Kafka 0.8's names with Error for Exception."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.client.errors import ClientError, IllegalStateError, RetriableError


class FailedToSendMessageError(RetriableError):
    """Some messages were not acknowledged within message.send.max.retries; they may have been written."""

    def __init__(self, message: str, failed: Sequence[tuple[Any, BaseException]] = ()) -> None:
        super().__init__(message, failed)
        self.failed = list(failed)
        """Each KeyedMessage with what went wrong; the others were delivered."""

    def __str__(self) -> str:
        return str(self.args[0])


class QueueFullError(RetriableError):
    """The async producer's queue stayed full for queue.enqueue.timeout.ms."""


class ProducerClosedError(IllegalStateError):
    """send() after close()."""


class ConsumerTimeoutError(ClientError, TimeoutError):
    """No message came within consumer.timeout.ms. Iterating may go on."""


class MessageStreamsExistError(IllegalStateError):
    """A connector makes its streams once."""


class ConsumerRebalanceFailedError(RetriableError):
    """The partitions were not given up by their owners within rebalance.max.retries."""
