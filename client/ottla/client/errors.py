"""The errors that the client raises. Used by all modules of the client; no I/O here.

An error code in a response is an instance of the class of its code (`NotLeaderOrFollowerError`), created by
`for_code`; all errors of a kind are caught by their base class (`RetriableError`, `AuthorizationError`).
Errors without a code have classes here, as in Kafka's Java client. `retriable` says whether the same call may
succeed later; the producer and the consumer have already retried for as long as configured.

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
    """The class of a code other than NONE; UnknownServerError for one that Kafka 3.9 does not have."""
    assert code != ErrorCode.NONE, "no error"
    return BY_CODE.get(code, UnknownServerError)


def for_code(code: int, message: str | None = None) -> BrokerError:
    """The error of a code in a response. `message`: that of the response, or the context."""
    if code not in BY_CODE:
        message = (
            f"error code {code}, which Kafka 3.9 does not have{'' if message is None else f': {message}'}"
        )
    return class_of(code)(message)


def typed(error: KafkaError) -> BrokerError:
    """The same error as an instance of the class of its code: for errors of the wire layer."""
    return error if isinstance(error, BrokerError) else for_code(error.code, error.message)


class ConfigError(ClientError, ValueError):
    """An invalid setting; the message has its key, the value and what is allowed."""


class IllegalStateError(ClientError, RuntimeError):
    """The call is not allowed in this state: not started, closed, no assignment, another kind of
    subscription."""


class SerializationError(ClientError):
    """A key or value could not be serialized."""


class DeserializationError(SerializationError):
    """A record could not be deserialized. The position stays at it: seek to `offset + 1` to skip it."""

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
    """buffer.memory was in use for max.block.ms: records are produced faster than brokers accept them."""


class TransactionAbortedError(ClientError):
    """The record was not sent, or is aborted, because its transaction was aborted."""


class CommitFailedError(ClientError):
    """The group assigned the partitions to other members before the commit: their records will be read
    again."""


class RetriableCommitFailedError(RetriableError):
    """An asynchronous commit failed temporarily; a later commit covers it."""


class NoOffsetForPartitionError(ClientError):
    """The partitions have no committed offset, and auto.offset.reset is none."""


class LogTruncationError(ClientError):
    """The log was truncated below the position (unclean leader election), and auto.offset.reset is none."""

    def __init__(self, topic: str, partition: int, offset: int, end_offset: int) -> None:
        """`end_offset`: the end of the leader epoch of the position; -1 if it is unknown."""
        super().__init__(topic, partition, offset, end_offset)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end_offset = end_offset

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: the position was {self.offset}, its leader epoch ends at "
            f"{self.end_offset}"
        )
