"""What kinds of errors the client raises, above those of each code (`ottla.client.errors_by_code`).

Called by `ottla.client.errors`, from which everybody imports. Which code is of which kind is what Kafka 3.9's
Java client says; see `ottla.client.errors_source`.

Invariants: whatever the client raises of its own is a `ClientError`, and says in `retriable` whether the same
call may succeed later; an error with a code is also a `ottla.protocol.errors.KafkaError`. All can be pickled.
"""

from __future__ import annotations

from typing import ClassVar

from ottla.protocol.errors import ErrorCode, KafkaError


class ClientError(Exception):
    """Anything the client raises of its own."""

    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later, with nothing changed by the caller."""

    @property
    def name(self) -> str:
        """For logs and metrics: Kafka's name of the code, or the class's."""
        return type(self).__name__


class BrokerError(ClientError, KafkaError):
    """An error of Kafka's table; made through its subclass. `code` and `retriable` are the class's."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str | None = None) -> None:
        """`message`: what the broker or the client has to say of it; else the table's sentence."""
        KafkaError.__init__(self, type(self).code, message)
        self.args = (message,)

    @property
    def name(self) -> str:
        return self.code.name


class RetriableError(ClientError):
    """The same call may succeed later."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """What the client knew of the cluster is out of date: it may succeed after fresh metadata."""


class AuthenticationError(ClientError):
    """The broker does not believe who we say we are."""


class AuthorizationError(ClientError):
    """The broker knows who we are, and does not allow it."""
