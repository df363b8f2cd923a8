"""What the sender of one request may do: the authorizer asked on its behalf, and the log of what was denied.

Made for each guarded request (`ottla.server.authorization.guarding`), and by the Produce and Fetch handlers'
checks. The log is Kafka's authorizer log, logger and words included: denied at INFO, allowed at DEBUG; what
was asked only to leave things out of an answer is logged at neither.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.security.authorizer import AclAuthorizer
from ottla.server.dispatch.dispatcher import Request

log = logging.getLogger("kafka.authorizer.logger")

TRACE: Final = logging.DEBUG // 2

REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
WORDS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
"""Kafka's, which tools show, in the answers where it sends them."""


@lru_cache(maxsize=4096)
def java_address(host: str) -> str:
    """An address as Java writes it, and hence ACLs: IPv6 in full, one of IPv4 within it as IPv4."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))


class Access:
    """See the module."""

    __slots__ = ("_authorizer", "_host", "_principal", "request")

    def __init__(self, authorizer: AclAuthorizer, request: Request) -> None:
        self._authorizer = authorizer
        self.request = request
        self._principal = request.principal
        self._host = java_address(request.connection.peer_host)

    def allows(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        quiet: bool = False,
        references: int = 1,
    ) -> bool:
        """May it do this? `quiet`: being denied is nothing to tell of. `references` is for the log."""
        allowed = self._authorizer.allows(self._principal, self._host, operation, resource_type, name)
        level = logging.DEBUG if allowed else TRACE if quiet else logging.INFO
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

    def allows_cluster(self, operation: Operation, *, quiet: bool = False) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME, quiet=quiet)

    def require_cluster(self, operation: Operation, words: str | None = None) -> None:
        """Raises CLUSTER_AUTHORIZATION_FAILED, with these words or such as name the request."""
        if not self.allows_cluster(operation):
            if words is None:
                name, version = self.request.route.request_class.__name__, self.request.version
                words = f"Request {name} v{version} is not authorized."
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, words)

    def require(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raises the authorization error of such resources."""
        if not self.allows(operation, resource_type, name):
            raise KafkaError(REFUSALS[resource_type], "")

    def among(
        self,
        operation: Operation,
        resource_type: ResourceType,
        names: Iterable[str],
        *,
        quiet: bool = False,
    ) -> set[str]:
        """Those of the resources that it may do this to. `names` may be the keys of a dictionary, too."""
        return {
            name
            for name, count in Counter(iter(names)).items()
            if self.allows(operation, resource_type, name, quiet=quiet, references=count)
        }

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The `authorized_operations` of a resource (KIP-430)."""
        return self._authorizer.operations(self._principal, self._host, resource_type, name)

    def allows_some(self, operation: Operation, resource_type: ResourceType) -> bool:
        """May it do this to any resource of the type (KIP-679)?"""
        allowed = self._authorizer.allows_some(self._principal, self._host, operation, resource_type)
        level = logging.DEBUG if allowed else logging.INFO
        if log.isEnabledFor(level):
            self._log(level, operation, f"{resource_type.label}:UNKNOWN:NONE", 0, allowed=allowed)
        return allowed
