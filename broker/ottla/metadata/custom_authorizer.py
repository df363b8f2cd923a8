"""Authorizers of users: the broker asks a class that `authorizer.class.name` names as `module:Class`.

    class ByTeam:
        def authorize(self, principal, host, operation, resource_type, name) -> bool:
            return name.startswith(f"{principal.name}-")

        def authorize_by_resource_type(self, principal, host, operation, resource_type) -> bool:
            return True

A broker creates one instance, without arguments, when it starts. The optional `configure` gets the broker's
settings; the optional `close` is called when the broker stops. Such an authorizer has no ACLs: the ACL APIs
respond with SECURITY_DISABLED.

Invariants: the class is asked by the event loop, so it must respond from memory; super users are never asked
about; only True allows. An exception fails the request with UNKNOWN_SERVER_ERROR, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from ottla.metadata import policies
from ottla.security.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.security.authorizer import CLASS_NAME, SUPER_USERS, is_custom, parse_super_users
from ottla.security.principals import Principal

_METHODS: Final = ("authorize", "authorize_by_resource_type")


class AuthorizerClass(Protocol):
    """What users write. `configure(configs: Mapping[str, str])` and `close()` are optional."""

    def authorize(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether `principal`, from the address `host`, may do this operation on the resource. The name of
        the CLUSTER is `kafka-cluster`."""

    def authorize_by_resource_type(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is any resource of the type on which `principal` may do this operation: idempotent
        producers need WRITE on any topic (KIP-679)."""


class CustomAuthorizer:
    """An `ottla.security.authorizer.Authorizer` of a user's class."""

    def __init__(self, name: str, instance: AuthorizerClass, super_users: frozenset[Principal]) -> None:
        self.name = name
        """`module:Class`"""
        self.instance = instance
        self._super_users = super_users

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> bool:
        return (
            principal in self._super_users
            or self.instance.authorize(principal, host, operation, resource_type, name) is True
        )

    def allows_some(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return (
            principal in self._super_users
            or self.instance.authorize_by_resource_type(principal, host, operation, resource_type) is True
        )


def load_authorizer(properties: Mapping[str, str]) -> CustomAuthorizer | None:
    """The custom authorizer of a broker's valid settings; None if it has none. Raises ConfigError."""
    name = properties.get(CLASS_NAME, "").strip()
    if not is_custom(name):
        return None
    instance = policies.load(CLASS_NAME, name, properties, *_METHODS)
    return CustomAuthorizer(name, instance, parse_super_users(properties.get(SUPER_USERS, "")))
