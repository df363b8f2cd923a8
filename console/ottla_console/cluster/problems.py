"""Problems: what could not be read or done, why, and what to do about it. Pure.

Called wherever a client's error reaches a page. A `Need` says what a request needs of the cluster's
authorizer, so that a refused request can be reported as the missing right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ottla.client import errors
from ottla.client.errors import ClientError
from ottla.client.routing import ClusterUnreachable
from ottla.security.acls import Operation, ResourceType

_OPTIONS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.USER: "--user",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
}


_API: Final = re.compile(r"serves (\w+)Request in versions None")
_SINCE: Final = {
    "IncrementalAlterConfigs": "2.3",
    "ListPartitionReassignments": "2.4",
    "OffsetDelete": "2.4",
    "DescribeClientQuotas": "2.6",
    "AlterClientQuotas": "2.6",
    "DescribeUserScramCredentials": "2.7",
    "AlterUserScramCredentials": "2.7",
    "DescribeProducers": "3.0",
    "DescribeTransactions": "3.0",
    "ListTransactions": "3.0",
}
"""The versions of Apache Kafka that have introduced APIs."""


class Kind(Enum):
    """Why something is missing on a page."""

    FORBIDDEN = "forbidden"
    UNREACHABLE = "unreachable"
    UNSUPPORTED = "unsupported"
    MISSING = "missing"
    FAILED = "failed"
    INVALID = "invalid"
    """What a person gave in a form."""


@dataclass(frozen=True, slots=True)
class Need:
    """The right that a request needs: an operation on a resource."""

    operation: Operation
    resource: ResourceType
    name: str = ""
    """Empty: any resource of the type."""

    @property
    def text(self) -> str:
        if self.resource is ResourceType.CLUSTER:
            return f"{self.operation.label} on the cluster"
        kind = self.resource.name.lower().replace("_", " ")
        return (
            f"{self.operation.label} on the {kind} {self.name}"
            if self.name
            else f"{self.operation.label} on {kind}s"
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """What failed, and what to do; texts for people."""

    kind: Kind
    what: str
    """What is missing on the page: `the log directories of broker 1`."""
    reason: str
    advice: str = ""
    command: str = ""
    """A command that would help, for an administrator."""


def problem_of(error: Exception, what: str, need: Need | None = None, principal: str = "") -> Problem:
    """The problem of a failed request for `what`, which needed `need`, as `principal`."""
    if isinstance(error, errors.AuthenticationError):
        return Problem(
            Kind.FORBIDDEN, what, f"the broker refused the log-in: {error}", "Log out and log in again."
        )
    if isinstance(error, errors.AuthorizationError):
        return _forbidden(error, what, need, principal)
    if isinstance(error, errors.SecurityDisabledError):
        return Problem(
            Kind.UNSUPPORTED, what, "the brokers have no authorizer, so that every client may do everything",
            "Set authorizer.class.name on the brokers to use ACLs.",
        )  # fmt: skip
    if isinstance(error, errors.UnsupportedVersionError):
        api = _API.search(str(error))
        since = _SINCE.get(api[1]) if api else None
        reason = (
            f"the brokers are older than Apache Kafka {since}, which has introduced it"
            if since
            else f"this version of the brokers does not support it ({error})"
        )
        return Problem(Kind.UNSUPPORTED, what, reason)
    if isinstance(
        error,
        (
            errors.UnknownTopicOrPartitionError,
            errors.GroupIdNotFoundError,
            errors.TransactionalIdNotFoundError,
        ),
    ):
        return Problem(Kind.MISSING, what, "it does not exist, or you may not see it")
    if isinstance(error, (ClusterUnreachable, errors.NetworkError, errors.RequestTimedOutError, OSError)):
        return Problem(
            Kind.UNREACHABLE, what, str(error) or "no response in time",
            "The page shows what is known, and tries again by itself.",
        )  # fmt: skip
    named = f"{error.name}: {error}" if isinstance(error, ClientError) else str(error) or type(error).__name__
    return Problem(Kind.FAILED, what, named, "The page tries again by itself.")


def _forbidden(error: ClientError, what: str, need: Need | None, principal: str) -> Problem:
    if need is None:
        return Problem(Kind.FORBIDDEN, what, f"{principal or 'you'} may not read it ({error})")
    who = principal or "this user"
    target = (
        "--cluster"
        if need.resource is ResourceType.CLUSTER
        else f"{_OPTIONS[need.resource]} {_quoted(need.name or '*')}"
    )
    operation = need.operation.name.lower().replace("_", "-")
    command = f"ottla acls add --allow {_quoted(who)} --operation {operation} {target}" if principal else ""
    return Problem(
        Kind.FORBIDDEN, what, f"{who} lacks {need.text}",
        "An administrator can grant it:" if command else "", command,
    )  # fmt: skip


def _quoted(text: str) -> str:
    """A word of a shell."""
    plain = all(each.isascii() and (each.isalnum() or each in "._-:/") for each in text)
    return text if plain and text else "'" + text.replace("'", "'\\''") + "'"
