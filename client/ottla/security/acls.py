"""Access control lists as values: entries (principal, host, operation, permission) for resource patterns, and
filters of entries (KIP-140, KIP-290). Pure.

Used by the authorizer, the handlers of the ACL APIs, the store of the entries in ZooKeeper and the command
line. Codes are those of the protocol; names are those of Kafka's tools and znodes (`IdempotentWrite` for the
constant IDEMPOTENT_WRITE). A value of a newer Kafka that this version does not know is UNKNOWN and matches
nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

WILDCARD: Final = "*"
"""Any resource of a type, any host; and `User:*` any user."""
CLUSTER_NAME: Final = "kafka-cluster"
ANYBODY: Final = "User:*"


class _Coded(enum.IntEnum):
    @classmethod
    def of(cls, code: int) -> Self:
        """The member with that code in the protocol; UNKNOWN for any other code."""
        try:
            return cls(code)
        except ValueError:
            return cls(0)

    @classmethod
    def named(cls, name: str) -> Self:
        """The member with that name in a znode or a tool (`DescribeConfigs`, in any case); UNKNOWN for any
        other name."""
        wanted = name.upper()
        return next(
            (each for each in cls if name == each.label or wanted == each.label.upper()),
            cls(0),
        )

    @property
    def label(self) -> str:
        """`DescribeConfigs` for DESCRIBE_CONFIGS."""
        return self.name.title().replace("_", "")


class ResourceType(_Coded):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Coded):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Coded):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(_Coded):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O = Operation
SUPPORTED: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE),
    ResourceType.CLUSTER: (
        _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations of each resource type."""


def bits(operations: Iterable[Operation]) -> int:
    """Operations as bits, as in the `authorized_operations` of responses (KIP-430)."""
    return sum(1 << operation for operation in operations)


IMPLYING: Final[dict[Operation, tuple[Operation, ...]]] = {
    _O.DESCRIBE: (_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER),
    _O.DESCRIBE_CONFIGS: (_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
}
"""The operations whose ALLOW implies the operation; a DENY implies nothing."""


class ResourcePattern(NamedTuple):
    """One resource, all of its type (a LITERAL `*`), or all with that prefix (PREFIXED)."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


class Entry(NamedTuple):
    """An operation that a principal (`User:alice`) from a host (an address or `*`) may or may not do."""

    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def is_unknown(self) -> bool:
        return not self.operation or not self.permission


class AclBinding(NamedTuple):
    """An entry for a resource pattern."""

    pattern: ResourcePattern
    entry: Entry

    @property
    def is_unknown(self) -> bool:
        pattern = self.pattern
        return not pattern.resource_type or not pattern.pattern_type or self.entry.is_unknown


class PatternFilter(NamedTuple):
    """A filter of resource patterns. A name of None matches any; the pattern type MATCH matches all patterns
    that apply to the name."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY

    def matches(self, pattern: ResourcePattern) -> bool:
        wanted = self.pattern_type
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if wanted not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if wanted is not PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    def exact(self) -> tuple[ResourcePattern, ...]:
        """The patterns that the filter can match, if it names them; else none."""
        if self.resource_type <= ResourceType.ANY or self.name is None:
            return ()
        if self.pattern_type is PatternType.ANY:
            types: tuple[PatternType, ...] = (PatternType.LITERAL, PatternType.PREFIXED)
        elif self.pattern_type >= PatternType.LITERAL:
            types = (self.pattern_type,)
        else:
            types = ()
        return tuple(ResourcePattern(self.resource_type, self.name, each) for each in types)


class EntryFilter(NamedTuple):
    """A filter of entries. None and ANY match any value."""

    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, entry: Entry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )


class AclFilter(NamedTuple):
    """A filter of ACL bindings."""

    pattern: PatternFilter = PatternFilter()
    entry: EntryFilter = EntryFilter()

    def matches(self, binding: AclBinding) -> bool:
        return self.pattern.matches(binding.pattern) and self.entry.matches(binding.entry)
