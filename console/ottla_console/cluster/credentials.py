"""What a person of a session is authenticated by at the brokers: a password, or a delegation token.

Made by `web.login`, held by `access`. Invariants: secrets are in memory only, and in no text that is logged
or shown; credentials that are equal have the same secret.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from ottla.client.admin import AdminClient
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.security import jaas
from ottla_console.settings import Cluster

log = logging.getLogger(__name__)

Connect: TypeAlias = Callable[[Mapping[str, object]], AdminClient]
CLIENT_ID: Final = "ottla-console"
FORGET_S: Final = 5.0
PROPAGATION_S: Final = 5.0
"""The brokers learn of a new delegation token from ZooKeeper."""
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Credentials(Protocol):
    """See the module. Hashable."""

    @property
    def principal(self) -> str:
        """User:anna."""

    @property
    def known_within_s(self) -> float:
        """How long brokers may refuse them at first."""

    def properties(self) -> Mapping[str, object]:
        """The properties of a client that logs in with them."""

    def usable(self, certificate: bytes | None, now_ms: int) -> bool:
        """Whether a request over a connection with this client certificate, in DER, may still use them."""

    async def forget(self) -> None:
        """They are no longer used: makes them worthless where that is possible. Raises nothing."""


@dataclass(frozen=True)
class Password:
    """A SASL user with a password."""

    mechanism: str
    user: str
    password: str = field(repr=False)

    known_within_s = 0.0

    @property
    def principal(self) -> str:
        return f"User:{self.user}"

    def properties(self) -> dict[str, str]:
        return _sasl(self.mechanism, self.user, self.password)

    def usable(self, certificate: bytes | None, now_ms: int) -> bool:
        return True

    async def forget(self) -> None:
        pass


@dataclass(frozen=True, eq=False)
class DelegationToken:
    """A token that the console has had made for a person with a client certificate (KIP-373). Each log-in has
    its own."""

    cluster: Cluster
    principal: str
    certificate: bytes = field(repr=False)
    """Whose connections may use it, in DER."""
    id: str
    hmac: bytes = field(repr=False)
    expires_ms: int
    connect: Connect = field(repr=False)

    known_within_s = PROPAGATION_S

    def properties(self) -> dict[str, str]:
        password = base64.b64encode(self.hmac).decode()
        return _sasl(self.cluster.properties["sasl.mechanism"], self.id, password, " tokenauth=true")

    def usable(self, certificate: bytes | None, now_ms: int) -> bool:
        return certificate == self.certificate and now_ms < self.expires_ms

    async def forget(self) -> None:
        """The brokers delete the token; if they cannot, it ends with its lifetime."""
        try:
            async with asyncio.timeout(FORGET_S), self.connect(_own(self.cluster)) as admin:
                await admin.expire_delegation_token(self.hmac)
        except (ClientError, KafkaError, OSError, TimeoutError) as error:
            log.warning(
                "cluster=%s: the delegation token of %r was not deleted, and ends with its lifetime: %s",
                self.cluster.name,
                self.principal,
                type(error).__name__,
            )


async def delegation_token(
    cluster: Cluster, principal: str, certificate: bytes, lifetime_ms: int, connect: Connect
) -> DelegationToken:
    """Have a token made for this principal, by the console's own user. Raises ClientError, KafkaError and
    OSError."""
    async with connect(_own(cluster)) as admin:
        made = await admin.create_delegation_token(
            owner=principal, renewers=[own_principal(cluster)], max_lifetime_ms=lifetime_ms
        )
    return DelegationToken(
        cluster, principal, certificate, made.token_id, made.hmac, made.expires_ms, connect
    )


def own_principal(cluster: Cluster) -> str:
    """The console's own user, who creates tokens, and is their renewer: only owners and renewers delete
    them."""
    return f"User:{jaas.parse(cluster.properties['sasl.jaas.config']).options['username']}"


def _own(cluster: Cluster) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "client.id": CLIENT_ID,
        "request.timeout.ms": 5_000,
        "default.api.timeout.ms": 7_000,
        **cluster.properties,
    }


def _sasl(mechanism: str, user: str, password: str, more: str = "") -> dict[str, str]:
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    config = f"{module} required username={_quoted(user)} password={_quoted(password)}{more};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": config}


def _quoted(text: str) -> str:
    """A value of a JAAS configuration."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
