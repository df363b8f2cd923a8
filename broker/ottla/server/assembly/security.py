"""A broker's room for security: made and wired in one place.

Called by the broker, which makes it before anything listens, tells it of users' settings, and has it look for
renewed certificates about once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.metadata.config import BrokerConfig
from ottla.metadata.delegation_tokens import DelegationTokens
from ottla.metadata.dynamic_broker_config import DynamicBrokerConfig
from ottla.metadata.dynamic_configs import OnQuotaConfig
from ottla.metadata.scram_credentials import ScramCredentials
from ottla.security.clients import ClientSecurity
from ottla.server.network.secure_listeners import SecureListeners, SecurityProblem


class BrokerSecurity:
    def __init__(
        self, settings: DynamicBrokerConfig, loop: asyncio.AbstractEventLoop, clock: Callable[[], int]
    ) -> None:
        """Raises SecurityProblem."""
        config = settings.config
        self.credentials = ScramCredentials()
        self.tokens = DelegationTokens(config, clock)
        self.listeners = SecureListeners(
            config, loop, credentials=self.credentials, tokens=self.tokens.lookup, clock=clock
        )

        settings.checks.append(self.listeners.problem)
        self.between_brokers = _between_brokers(config)
        """How this broker connects to others; None: by PLAINTEXT."""
        config.open_listeners()

    def beside(self, on_quota_config: OnQuotaConfig) -> OnQuotaConfig:
        """Hear of users' settings, which hold their credentials, and hand them on."""

        def heard(entity_type: str, entity: str, settings: dict[str, str]) -> None:
            self.credentials.on_entity_changed(entity_type, entity, settings)
            on_quota_config(entity_type, entity, settings)

        return heard

    def tick(self, *, is_controller: bool) -> None:
        self.listeners.renew()
        self.tokens.expire(is_controller=is_controller)

    async def close(self) -> None:
        await self.tokens.stop()
        self.listeners.close()


def _between_brokers(config: BrokerConfig) -> ClientSecurity | None:
    """By the settings of the listener that brokers use: its key store is a client's, too. Raises
    SecurityProblem."""
    name = config.inter_broker_listener
    protocol = next(listener.protocol for listener in config.listeners if listener.name == name)
    if protocol == "PLAINTEXT":
        return None
    security = config.security(name)
    mechanism = security.get("sasl.mechanism.inter.broker.protocol") or ""
    try:
        return ClientSecurity(
            protocol, security.get, mechanism, security.of_mechanism(mechanism, "sasl.jaas.config")
        )
    except ValueError as problem:
        raise SecurityProblem(f"connections among brokers, listener {name}: {problem}") from None
