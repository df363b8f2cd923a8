"""Authorizes the sender of a request, and writes the authorizer log (Kafka's AuthHelper).

An AuthHelper is made for each request with a check (`ottla.server.authorization.checks`); the Produce and
Fetch handlers use a TopicAuthorizer. The log is Kafka's authorizer log, with its logger name and text: denied
at INFO, allowed at DEBUG. Denials with `log_denied` False, which only filter a response, are at TRACE.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.security.authorizer import Authorizer, allowed_operations
from ottla.server.dispatch.dispatcher import Request
from ottla.server.network.channel import Connection

log = logging.getLogger("kafka.authorizer.logger")

TRACE: Final = logging.DEBUG // 2

DENIED_ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
DENIED_MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
"""Kafka's messages, which tools show; only in the responses in which Kafka sends them."""


@lru_cache(maxsize=4096)
def java_address(host: str) -> str:
    """An address as Java, and hence ACLs, write it: IPv6 without `::`, an IPv4-mapped address as IPv4."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))


class AuthHelper:
    """See the module."""

    __slots__ = ("_authorizer", "_host", "_principal", "request")

    def __init__(self, authorizer: Authorizer, request: Request) -> None:
        self._authorizer = authorizer
        self.request = request
        self._principal = request.principal
        self._host = java_address(request.connection.peer_host)

    def authorize(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        log_denied: bool = True,
        references: int = 1,
    ) -> bool:
        """Whether the sender is authorized. `references` is for the log: how often the request has the
        resource."""
        allowed = self._authorizer.allows(self._principal, self._host, operation, resource_type, name)
        level = logging.DEBUG if allowed else logging.INFO if log_denied else TRACE
        if log.isEnabledFor(level):
            resource = f"{resource_type.label}:LITERAL:{name}"
            self._log(level, operation, resource, references, allowed=allowed)
        return allowed

    def _log(
        self, level: int, operation: Operation, resource: str, references: int, *, allowed: bool
    ) -> None:
        log.log(
            level,
            "Principal = %s is %s Operation = %s from host = %s on resource = %s for request = %s "
            "with resourceRefCount = %d",
            self._principal,
            "Allowed" if allowed else "Denied",
            operation.label,
            self._host,
            resource,
            self.request.route.request_class.__name__.removesuffix("Request"),
            references,
        )

    def authorize_cluster(self, operation: Operation, *, log_denied: bool = True) -> bool:
        return self.authorize(operation, ResourceType.CLUSTER, CLUSTER_NAME, log_denied=log_denied)

    def require_cluster(self, operation: Operation, message: str | None = None) -> None:
        """Raises CLUSTER_AUTHORIZATION_FAILED with `message`, by default one that names the request."""
        if not self.authorize_cluster(operation):
            if message is None:
                name, version = self.request.route.request_class.__name__, self.request.version
                message = f"Request {name} v{version} is not authorized."
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message)

    def require(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raises the authorization error of the resource type."""
        if not self.authorize(operation, resource_type, name):
            raise KafkaError(DENIED_ERRORS[resource_type], "")

    def filter_authorized(
        self,
        operation: Operation,
        resource_type: ResourceType,
        names: Iterable[str],
        *,
        log_denied: bool = True,
    ) -> set[str]:
        """The names of the resources that the sender is authorized for."""
        return {
            name
            for name, count in Counter(iter(names)).items()
            if self.authorize(operation, resource_type, name, log_denied=log_denied, references=count)
        }

    def authorized_operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The `authorized_operations` of a resource (KIP-430)."""
        return allowed_operations(self._authorizer, self._principal, self._host, resource_type, name)

    def authorize_by_resource_type(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the sender is authorized for at least one resource of the type (KIP-679)."""
        allowed = self._authorizer.allows_some(self._principal, self._host, operation, resource_type)
        level = logging.DEBUG if allowed else logging.INFO
        if log.isEnabledFor(level):
            self._log(level, operation, f"{resource_type.label}:UNKNOWN:NONE", 0, allowed=allowed)
        return allowed


IsAuthorized: TypeAlias = Callable[[str | None], bool]
"""Whether a topic may be used; the argument is its name, or None for an unknown topic id."""


class TopicAuthorizer:
    """Checks for the Produce and Fetch handlers, which evaluate each topic once per request."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def for_write(self, request: Request) -> IsAuthorized:
        return self._cached(request, Operation.WRITE)

    def may_write_unlogged(self, connection: Connection, topic: str) -> bool:
        """Whether the client may write to the topic, and the log has no line about it."""
        return self._may_unlogged(Operation.WRITE, connection, topic)

    def may_read_unlogged(self, connection: Connection, topic: str) -> bool:
        """The same for a consumer that reads."""
        return self._may_unlogged(Operation.READ, connection, topic)

    def _may_unlogged(self, operation: Operation, connection: Connection, topic: str) -> bool:
        return not log.isEnabledFor(logging.DEBUG) and self._authorizer.allows(
            connection.principal,
            java_address(connection.peer_host),
            operation,
            ResourceType.TOPIC,
            topic,
        )

    def for_read(self, request: Request, *, follower: bool) -> IsAuthorized:
        """A consumer needs READ on each topic, a follower CLUSTER_ACTION for all of them."""
        if not follower:
            return self._cached(request, Operation.READ)
        allowed = AuthHelper(self._authorizer, request).authorize_cluster(Operation.CLUSTER_ACTION)
        return lambda topic: allowed

    def _cached(self, request: Request, operation: Operation) -> IsAuthorized:
        auth = AuthHelper(self._authorizer, request)
        results: dict[str | None, bool] = {None: True}

        def is_authorized(topic: str | None) -> bool:
            result = results.get(topic)
            if result is None:
                assert topic is not None
                result = results[topic] = auth.authorize(operation, ResourceType.TOPIC, topic)
            return result

        return is_authorized
