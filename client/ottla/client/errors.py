"""Every error that the client raises of its own. Called by all of the client, its core too: no I/O here.

An error of a broker's answer is an instance of its code's class (`NotLeaderOrFollowerError`), made by
`for_code`; all of a kind are caught by their kind (`RetriableError`, `AuthorizationError`). What no code
stands for has a class here, as it has in Kafka's Java client. `retriable` says whether the same call may
succeed later; the producer and the consumer have retried by then for as long as they were told to.

    try:
        await producer.send_and_wait("orders", b"one")
    except errors.RetriableError as error:
        log.warning("later: %s", error)      # REQUEST_TIMED_OUT: …
    except errors.ClientError as error:
        log.error("%s: %s", error.name, error)
"""

from __future__ import annotations

from ottla.client.error_kinds import *  # noqa: F403
from ottla.client.error_kinds import BrokerError, ClientError, RetriableError
from ottla.client.errors_by_code import *  # noqa: F403
from ottla.client.errors_by_code import BY_CODE, RequestTimedOutError, UnknownServerError
from ottla.protocol.errors import ErrorCode, KafkaError


def class_of(code: int) -> type[BrokerError]:
    """Of a code that is not NONE; UnknownServerError for one from after 3.9."""
    assert code != ErrorCode.NONE, "no error"
    return BY_CODE.get(code, UnknownServerError)


def for_code(code: int, message: str | None = None) -> BrokerError:
    """The error that a code in an answer stands for; `message`: the answer's, or where it happened."""
    if code not in BY_CODE:
        message = (
            f"error code {code}, which Kafka 3.9 does not have{'' if message is None else f': {message}'}"
        )
    return class_of(code)(message)


def typed(error: KafkaError) -> BrokerError:
    """The same error as an instance of its code's class: for what comes from below the client."""
    return error if isinstance(error, BrokerError) else for_code(error.code, error.message)


class ConfigError(ClientError, ValueError):
    """A setting is not acceptable; the message has its key, the value and what is allowed."""


class IllegalStateError(ClientError, RuntimeError):
    """The call makes no sense now: not started, closed, no assignment, another kind of subscription."""


class SerializationError(ClientError):
    """A key or value could not be made into bytes."""


class DeserializationError(SerializationError):
    """A record's bytes could not be read. The consumer stands at it: seek to `offset + 1` to leave it out."""

    def __init__(self, topic: str, partition: int, offset: int, message: str) -> None:
        super().__init__(topic, partition, offset, message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.message = message

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}: {self.message}"


class DeliveryTimeoutError(RequestTimedOutError):
    """delivery.timeout.ms passed before a broker acknowledged the record; it may have been written."""


class BufferExhaustedError(RequestTimedOutError):
    """buffer.memory stayed full for max.block.ms: records are made faster than brokers take them."""


class TransactionAbortedError(ClientError):
    """The record was not sent, or does not count, since its transaction was aborted."""


class CommitFailedError(ClientError):
    """The group gave the partitions to somebody else before the commit: their records will be read again."""


class RetriableCommitFailedError(RetriableError):
    """An asynchronous commit failed for now; a later one covers it."""


class NoOffsetForPartitionError(ClientError):
    """No offset is committed for the partitions, and auto.offset.reset is none."""


class LogTruncationError(ClientError):
    """The log was cut back below the position (an unclean election), and auto.offset.reset is none."""

    def __init__(self, topic: str, partition: int, offset: int, end_offset: int) -> None:
        """`end_offset`: where the log of the position's leader epoch ends; -1 where nobody knows."""
        super().__init__(topic, partition, offset, end_offset)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end_offset = end_offset

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the position was {self.offset}, the log of its epoch ends at "
            f"{self.end_offset}"
        )
