"""The base classes of the client's errors, above those of each code (`ottla.client.errors_by_code`).

Imported by all through `ottla.client.errors`; a module of its own because the generated module imports it.
The class of each code is that of Kafka 3.9's Java client; see `ottla.client.errors_source`.

Invariants: every error that the client raises is a `ClientError`, and `retriable` says whether the same call
may succeed later; an error with a code is also a `ottla.protocol.errors.KafkaError`. All can be pickled.
"""

from __future__ import annotations

from typing import ClassVar

from ottla.protocol.errors import ErrorCode, KafkaError


class ClientError(Exception):
    """The base of all errors that the client raises."""

    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later without a change by the caller."""

    @property
    def name(self) -> str:
        """For logs and metrics: Kafka's name of the error code, or the name of the class."""
        return type(self).__name__


class BrokerError(ClientError, KafkaError):
    """An error code of Kafka; use its subclasses. `code` and `retriable` are those of the class."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init_subclass__(cls, code: ErrorCode | None = None, **arguments: object) -> None:
        """`code`: that of the class; without it, the class has the code of its base."""
        super().__init_subclass__(**arguments)
        if code is not None:
            cls.code = code

    def __init__(self, message: str | None = None) -> None:
        """`message`: the message of the broker or the client; by default that of the code."""
        KafkaError.__init__(self, type(self).code, message)
        self.args = (message,)

    @property
    def name(self) -> str:
        return self.code.name


class RetriableError(ClientError):
    """The same call may succeed later."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """The metadata of the client was stale: the call may succeed with fresh metadata."""


class AuthenticationError(ClientError):
    """Authentication failed."""


class AuthorizationError(ClientError):
    """The authenticated principal is not authorized."""
