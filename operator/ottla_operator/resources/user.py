"""User: a user's credentials (a password or a certificate in a Secret) and ACLs.

Quotas of a user are in a Quota resource; its entity is `status.username`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ottla.security.acls import (
    CLUSTER_NAME,
    SUPPORTED,
    WILDCARD,
    AclBinding,
    Entry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla_operator.resources.common import (
    AGE,
    CLUSTER,
    READY,
    STATUS,
    ClusterRef,
    Definition,
    Model,
    PrinterColumn,
    Problem,
    Resource,
    Rule,
    Status,
    cel_list,
    cel_regex,
    immutable,
    rules,
)

USER_NAME = r"^[a-zA-Z0-9._@-]+$"
COMMON_NAME_MAX = 64  # of X.509

_TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
}
_ADDRESS = re.compile(r"^[0-9a-fA-F.:]+$")

OperationName = Literal[
    "All", "Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction",
    "DescribeConfigs", "AlterConfigs", "IdempotentWrite",
]  # fmt: skip


class SecretKey(Model):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)] = Field(
        description="A Secret in the same namespace."
    )
    key: str = Field(min_length=1, description="The key in the Secret.")


class PasswordSource(Model):
    secret_key_ref: SecretKey = Field(description="The key of a Secret with the password.")


class Password(Model):
    value_from: PasswordSource = Field(description="The source of the password.")


class Authentication(Model):
    model_config = rules(
        Rule("password is allowed for type scram-sha-512 only", "!has(self.password) || self.type != 'tls'")
    )

    type: Literal["scram-sha-512", "tls"] = Field(
        description="scram-sha-512: a password; tls: a certificate of the cluster's clientsCa."
    )
    password: Password | None = Field(
        default=None, description="The password for scram-sha-512. Default: a generated one."
    )


class AclResource(Model):
    model_config = rules(
        Rule(
            f"name is required, and `*` is allowed for all; for type cluster it is {CLUSTER_NAME} or absent",
            f"self.type == 'cluster' ? !has(self.name) || self.name == '{CLUSTER_NAME}' : has(self.name)",
        ),
        Rule(
            "patternType prefix is not allowed for type cluster",
            "self.type != 'cluster' || self.patternType != 'prefix'",
        ),
    )

    type: Literal["topic", "group", "cluster", "transactionalId"] = Field(
        description="The type of the resources."
    )
    name: str | None = Field(default=None, min_length=1, description="`*`: all resources of the type.")
    pattern_type: Literal["literal", "prefix"] = Field(
        default="literal",
        description="literal: the name is that of the resource; prefix: the name is the beginning of those "
        "of the resources.",
    )


def _operations_on(type_: str) -> tuple[str, ...]:
    """The names of the operations on resources of a type."""
    return ("All", *(operation.label for operation in SUPPORTED[_TYPES[type_]]))


class Acl(Model):
    model_config = rules(
        *(
            Rule(
                f"operations on type {name} are {', '.join(_operations_on(name))}",
                f"self.resource.type != '{name}' || "
                f"self.operations.all(o, o in {cel_list(_operations_on(name))})",
            )
            for name in _TYPES
        ),
        Rule(
            "host is not an address; allowed: an IP address, or `*`",
            f"self.host == '{WILDCARD}' || self.host.matches({cel_regex(_ADDRESS.pattern)})",
        ),
    )

    resource: AclResource = Field(description="The resources that the ACL is about.")
    operations: list[OperationName] = Field(min_length=1, max_length=11, description="Kafka's operations.")
    type: Literal["allow", "deny"] = Field(
        default="allow", description="Whether the operations are allowed or denied."
    )
    host: str = Field(default=WILDCARD, max_length=64, description="An IP address, or `*` for all.")

    def bindings(self, principal: str) -> Iterator[AclBinding]:
        prefixed = self.resource.pattern_type == "prefix"
        pattern = ResourcePattern(
            _TYPES[self.resource.type],
            self.resource.name or CLUSTER_NAME,
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        )
        permission = Permission.ALLOW if self.type == "allow" else Permission.DENY
        for name in self.operations:
            yield AclBinding(pattern, Entry(principal, self.host, Operation.named(name), permission))


class Authorization(Model):
    type: Literal["simple"] = Field(default="simple", description="Kafka's ACLs.")
    acls: list[Acl] = Field(default_factory=list, max_length=1000, description="The ACLs of the user.")


class UserSpec(Model):
    cluster_ref: ClusterRef = Field(description="The cluster of the user.")
    user_name: Annotated[str, Field(pattern=USER_NAME, min_length=1, max_length=255)] | None = Field(
        default=None, description="The name of the user in authentication. Default: the resource's name."
    )
    authentication: Authentication | None = Field(
        default=None, description="None: the operator manages no credentials, as for users with tokens."
    )
    authorization: Authorization | None = Field(
        default=None, description="The user's ACLs; others are removed. None: the operator changes no ACLs."
    )


class UserStatus(Status):
    username: str = Field(default="", description="The name in principals and quotas.")
    secret: str = Field(default="", description="The Secret with the user's credentials.")
    secret_version: str = Field(
        default="", description="The version of the Secret whose password was set last."
    )
    acls: int = Field(default=0, description="The number of the user's ACLs in Kafka.")
    authorization: Literal["", "simple"] = Field(
        default="", description="simple: the operator owns the user's ACLs."
    )


class User(Resource[UserSpec, UserStatus]):
    definition: ClassVar[Definition] = Definition(
        kind="User",
        plural="users",
        short_names=("ou",),
        condition_types=("Ready", "CredentialsReady", "AclsSynced"),
        columns=(
            READY,
            PrinterColumn("Authentication", "string", ".spec.authentication.type"),
            PrinterColumn("ACLs", "integer", ".status.acls"),
            CLUSTER,
            STATUS,
            AGE,
            PrinterColumn("User", "string", ".status.username", 1),
            PrinterColumn("Secret", "string", ".status.secret", 1),
        ),
        rules=(
            Rule(
                f"the user's name is too long for a certificate; allowed: up to {COMMON_NAME_MAX} characters",
                "!has(self.spec.authentication) || self.spec.authentication.type != 'tls' || "
                "(has(self.spec.userName) ? self.spec.userName.size() : self.metadata.name.size()) <= "
                f"{COMMON_NAME_MAX}",
            ),
            Rule(
                "the password's Secret is the one that the operator writes for this user; use another one",
                "!has(self.spec.authentication) || !has(self.spec.authentication.password) || "
                "self.spec.authentication.password.valueFrom.secretKeyRef.name != self.metadata.name",
            ),
        ),
        transition_rules=(
            immutable("spec.clusterRef", "cluster_ref"),
            immutable("spec.userName", "user_name", optional=True),
        ),
    )

    kind: Literal["User"]
    status: UserStatus = Field(default_factory=UserStatus)

    @property
    def login_name(self) -> str:
        return self.spec.user_name or self.metadata.name

    @property
    def authentication_type(self) -> str | None:
        return None if self.spec.authentication is None else self.spec.authentication.type

    @property
    def username(self) -> str:
        """The name in principals: of a certificate's user, the distinguished name."""
        return f"CN={self.login_name}" if self.authentication_type == "tls" else self.login_name

    @property
    def principal(self) -> str:
        return f"User:{self.username}"

    @property
    def secret_name(self) -> str:
        return self.metadata.name

    @property
    def password_source(self) -> SecretKey | None:
        given = None if self.spec.authentication is None else self.spec.authentication.password
        return None if given is None else given.value_from.secret_key_ref

    def bindings(self) -> frozenset[AclBinding]:
        """The ACL bindings of the spec."""
        acls = [] if self.spec.authorization is None else self.spec.authorization.acls
        return frozenset(binding for acl in acls for binding in acl.bindings(self.principal))

    @property
    def deletes_in_kafka(self) -> bool:
        return True

    def problems(self) -> Iterator[Problem]:
        name = self.login_name
        if self.authentication_type == "tls" and len(name) > COMMON_NAME_MAX:
            message = f"{name!r} is too long for a certificate; allowed: up to {COMMON_NAME_MAX} characters"
            yield Problem("spec.userName", message)
        if self.authentication_type == "tls" and self.password_source is not None:
            yield Problem("spec.authentication.password", "is allowed for type scram-sha-512 only")
        source = self.password_source
        if source is not None and source.name == self.secret_name:
            path = "spec.authentication.password.valueFrom.secretKeyRef.name"
            yield Problem(
                path, f"{source.name!r} is the Secret that the operator writes for this user; use another one"
            )
        for number, acl in enumerate(self.spec.authorization.acls if self.spec.authorization else ()):
            yield from _acl_problems(acl, f"spec.authorization.acls[{number}]")


def _acl_problems(acl: Acl, path: str) -> Iterator[Problem]:
    resource = acl.resource
    if resource.type == "cluster":
        if resource.name not in (None, CLUSTER_NAME):
            yield Problem(f"{path}.resource.name", "is not allowed for type cluster")
        if resource.pattern_type == "prefix":
            yield Problem(f"{path}.resource.patternType", "prefix is not allowed for type cluster")
    elif resource.name is None:
        yield Problem(
            f"{path}.resource.name", f"is required for type {resource.type}; `*` is allowed for all"
        )
    supported = _operations_on(resource.type)
    for number, name in enumerate(acl.operations):
        if name not in supported:
            message = f"{name} is not an operation on type {resource.type}; allowed: {', '.join(supported)}"
            yield Problem(f"{path}.operations[{number}]", message)
    if acl.host != WILDCARD and not _ADDRESS.match(acl.host):
        yield Problem(f"{path}.host", f"{acl.host!r} is not an address; allowed: an IP address, or `*`")
