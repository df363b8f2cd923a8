"""Exceptions of the legacy clients, by the names of Kafka 0.8 with Error for Exception."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.client.errors import ClientError, IllegalStateError, RetriableError


class FailedToSendMessageError(RetriableError):
    """Some messages were not acknowledged within message.send.max.retries; they may have been written."""

    def __init__(self, message: str, failed: Sequence[tuple[Any, BaseException]] = ()) -> None:
        super().__init__(message, failed)
        self.failed = list(failed)
        """(KeyedMessage, error) of each message that was not delivered; all others were."""

    def __str__(self) -> str:
        return str(self.args[0])


class QueueFullError(RetriableError):
    """The async producer's queue stayed full for queue.enqueue.timeout.ms."""


class ProducerClosedError(IllegalStateError):
    """`send` was called after `close`."""


class ConsumerTimeoutError(ClientError, TimeoutError):
    """No message arrived within consumer.timeout.ms. The stream can be iterated again."""


class MessageStreamsExistError(IllegalStateError):
    """`create_message_streams` was called a second time on a connector."""


class ConsumerRebalanceFailedError(RetriableError):
    """The former owners did not release the partitions within rebalance.max.retries attempts."""
