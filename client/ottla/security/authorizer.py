"""Authorization: what the server asks an authorizer, and Kafka's AclAuthorizer over ACLs in memory. Pure.

The server calls it before it serves a request (`ottla.server.authorization`). `ottla.metadata.acls`, which
watches the ACLs in ZooKeeper, updates the AclAuthorizer; `ottla.metadata.custom_authorizer` loads classes of
users.

The AclAuthorizer's rules, as in Kafka: super users may do everything. The entries for a resource are those of
its name, of `*`, and of every prefix of its name; without any entry `allow.everyone.if.no.acl.found` decides.
A matching DENY takes precedence over every ALLOW. An operation is also allowed by an ALLOW for an operation
that implies it; a DENY applies to its own operation only.

Invariant: a cached decision was made with the present ACLs (`update` clears the cache).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from ottla.security.acls import (
    ANYBODY,
    CLUSTER_NAME,
    IMPLYING,
    SUPPORTED,
    WILDCARD,
    AclBinding,
    AclFilter,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    bits,
)
from ottla.security.principals import Principal

DECISIONS_MAX: Final = 100_000
"""The size of the cache of decisions; when it is full, it is cleared."""
CLASS_NAME: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_IF_NO_ACL: Final = "allow.everyone.if.no.acl.found"
SETTINGS: Final = (SUPER_USERS, ALLOW_IF_NO_ACL)
"""The authorizer's settings, which Kafka does not list among the broker's."""
CLASSES: Final = ("kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer")
"""Values of authorizer.class.name for this authorizer; the second is its name before Kafka 2.4."""


class Authorizer(Protocol):
    """What the server asks, on the path of each request."""

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> bool:
        """Whether `principal`, from the address `host`, may do this operation on the resource."""

    def allows_some(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is any resource of the type on which `principal` may do this operation (KIP-679)."""


class AclAuthorizer:
    """See the module."""

    def __init__(
        self, *, super_users: frozenset[Principal] = frozenset(), allow_if_no_acl: bool = False
    ) -> None:
        self._super_users = super_users
        self._allow_if_no_acl = allow_if_no_acl
        self._entries: dict[ResourcePattern, frozenset[Entry]] = {}
        self._prefixes: dict[ResourceType, set[str]] = {}
        self._decisions: dict[tuple[Principal, str, Operation, ResourceType, str], bool] = {}

    # --- the ACLs -----------------------------------------------------------------------------------

    def update(self, pattern: ResourcePattern, entries: frozenset[Entry]) -> None:
        """Set the entries of a pattern; an empty set removes it."""
        if entries:
            self._entries[pattern] = entries
        else:
            self._entries.pop(pattern, None)
        if pattern.pattern_type is PatternType.PREFIXED:
            prefixes = self._prefixes.setdefault(pattern.resource_type, set())
            (prefixes.add if entries else prefixes.discard)(pattern.name)
        self._decisions.clear()

    def entries(self, pattern: ResourcePattern) -> frozenset[Entry]:
        return self._entries.get(pattern, frozenset())

    def patterns(self) -> list[ResourcePattern]:
        return sorted(self._entries)

    def bindings(self, wanted: AclFilter) -> Iterator[AclBinding]:
        for pattern in self.patterns():
            for entry in sorted(self._entries[pattern]):
                binding = AclBinding(pattern, entry)
                if wanted.matches(binding):
                    yield binding

    # --- decisions ----------------------------------------------------------------------------------

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> bool:
        """Whether `principal`, from the address `host`, may do this operation on the resource."""
        key = (principal, host, operation, resource_type, name)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(principal, host, operation, resource_type, name)
        return decision

    def _decide(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        entries = self._entries_for(resource_type, name)
        if not entries:
            return self._allow_if_no_acl
        principals = (str(principal), ANYBODY)
        matching = [
            each for each in entries if each.principal in principals and each.host in (host, WILDCARD)
        ]
        if any(
            each.permission is Permission.DENY and each.operation in (operation, Operation.ALL)
            for each in matching
        ):
            return False
        sufficient = (*IMPLYING.get(operation, (operation,)), Operation.ALL)
        return any(each.permission is Permission.ALLOW and each.operation in sufficient for each in matching)

    def _entries_for(self, resource_type: ResourceType, name: str) -> list[Entry]:
        """The entries for the resource, of all principals."""
        found = [
            *self._entries.get(ResourcePattern(resource_type, WILDCARD), ()),
            *self._entries.get(ResourcePattern(resource_type, name), ()),
        ]
        for prefix in self._prefixes.get(resource_type, ()):
            if name.startswith(prefix):
                found += self._entries[ResourcePattern(resource_type, prefix, PatternType.PREFIXED)]
        return found

    def allows_some(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is any resource of the type on which `principal` may do this operation (KIP-679)."""
        if principal in self._super_users:
            return True

        def names(permission: Permission, pattern_type: PatternType) -> set[str]:
            """The names of the patterns with such an entry for this principal, without implied operations."""
            principals = (str(principal), ANYBODY)
            return {
                pattern.name
                for pattern, entries in self._entries.items()
                if pattern.resource_type is resource_type and pattern.pattern_type is pattern_type
                if any(
                    each.permission is permission
                    and each.principal in principals
                    and each.host in (host, WILDCARD)
                    and each.operation in (operation, Operation.ALL)
                    for each in entries
                )
            }

        denied = names(Permission.DENY, PatternType.LITERAL)
        if WILDCARD in denied:
            return False
        if self._allow_if_no_acl:
            return True
        denied_prefixes = names(Permission.DENY, PatternType.PREFIXED)

        def is_dominated(name: str) -> bool:
            return any(name.startswith(prefix) for prefix in denied_prefixes)

        return any(
            not is_dominated(prefix) for prefix in names(Permission.ALLOW, PatternType.PREFIXED)
        ) or any(
            name == WILDCARD or (name not in denied and not is_dominated(name))
            for name in names(Permission.ALLOW, PatternType.LITERAL)
        )


def allowed_operations(
    authorizer: Authorizer, principal: Principal, host: str, resource_type: ResourceType, name: str
) -> int:
    """The operations that `principal` may do on the resource, as bits (KIP-430)."""
    return bits(
        operation
        for operation in SUPPORTED[resource_type]
        if authorizer.allows(principal, host, operation, resource_type, name)
    )


def is_custom(class_name: str) -> bool:
    """Whether a value of authorizer.class.name names a Python class (`module:Class`)."""
    return ":" in class_name


def own_prefix(given: Mapping[str, str]) -> tuple[str, ...]:
    """Prefixes of the settings that a custom authorizer defines; none without one."""
    return ("authorizer.",) if is_custom(given.get(CLASS_NAME, "")) else ()


def problems(given: Mapping[str, str]) -> list[str]:
    """What is wrong with a broker's authorizer settings, a line each."""
    found: list[str] = []
    name = given.get(CLASS_NAME, "").strip()
    if name and name not in CLASSES and not is_custom(name):
        found.append(f"{CLASS_NAME}={name}: not supported; {CLASSES[0]} is, and module:Class")
    if name and any(key.startswith("authorizer.zookeeper.") for key in given):
        found.append("authorizer.zookeeper.*: a separate ZooKeeper for ACLs is not supported")
    try:
        parse_super_users(given.get(SUPER_USERS, ""))
    except ValueError as error:
        found.append(f"{SUPER_USERS}={given[SUPER_USERS]}: {error}")
    return found


def make_authorizer(given: Mapping[str, str]) -> AclAuthorizer | None:
    """The AclAuthorizer of a broker's settings, which have no `problems`; None if they have none."""
    if given.get(CLASS_NAME, "").strip() not in CLASSES:
        return None
    return AclAuthorizer(
        super_users=parse_super_users(given.get(SUPER_USERS, "")),
        allow_if_no_acl=given.get(ALLOW_IF_NO_ACL, "").strip().lower() == "true",
    )


def parse_super_users(text: str) -> frozenset[Principal]:
    """`super.users`: "User:a;User:b". Raises ValueError."""
    # Java's split drops empty parts at the end.
    text = text.rstrip(";")
    return frozenset(Principal.parse(part.strip()) for part in text.split(";")) if text else frozenset()
