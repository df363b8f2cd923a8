"""Client quotas in the metadata store: describing and altering them (KIP-546).

Called by the handlers of DescribeClientQuotas and AlterClientQuotas; the broker parses entities with
`quota_entity`. Each entity has a config node, as in Kafka. The default entity has the name `<default>`, all
other names are URL-encoded:

    /config/clients/<client-id>     /config/users/<user>/clients/<client-id>
    /config/users/<user>            /config/ips/<address>

Validation, error codes and error messages are those of Kafka 3.9.1 in ZooKeeper mode, including
UNKNOWN_SERVER_ERROR, for example for a node with an unknown setting.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_plus

from ottla.metadata import znodes
from ottla.metadata.config_def import double_text
from ottla.metadata.dynamic_configs import CLIENTS, IPS, USERS, DynamicConfigs
from ottla.ports.tasks import TaskSet
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quotas.levels import DEFAULT, UNNAMED, Name, QuotaEntity

log = logging.getLogger(__name__)

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_EPSILON: Final = 1e-6
_LONG_MAX: Final = 2**63 - 1
_INT_MAX: Final = 2**31 - 1

# The settings with their largest integer; None for settings that are not integers.
_CLIENT_KEYS: Final[Mapping[str, int | None]] = {
    "producer_byte_rate": _LONG_MAX,
    "consumer_byte_rate": _LONG_MAX,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_IP_KEYS: Final[Mapping[str, int | None]] = {"connection_creation_rate": _INT_MAX}
_CREDENTIALS: Final = frozenset(("SCRAM-SHA-256", "SCRAM-SHA-512"))
"""Settings in a user's node that are not quotas; quota requests cannot change them."""

Entity = Mapping[str, Name]
"""Entity type -> name; None is the default of that type."""


@dataclass(frozen=True, slots=True)
class Component:
    """One component of a filter: entities of this type, with this name (None: the default), or any."""

    entity_type: str
    name: Name = None
    any_name: bool = False

    def accepts(self, name: str | None) -> bool:
        return self.any_name or self.name == name


def sanitize(name: Name) -> str:
    """The node name of an entity, in Kafka's encoding (Sanitizer): letters, digits and `-._` are kept."""
    if name is None:
        return znodes.DEFAULT_ENTITY
    return quote(name, safe="").replace("~", "%7E")


def desanitize(node: str) -> Name:
    return DEFAULT if node == znodes.DEFAULT_ENTITY else unquote_plus(node)


def quota_entity(entity_type: str, path: str) -> QuotaEntity:
    """The entity of the node `/config/<entity_type>/<path>`. Raises ValueError for other paths."""
    parts = path.split("/")
    if entity_type == CLIENTS and len(parts) == 1:
        return QuotaEntity(UNNAMED, desanitize(path))
    if entity_type == USERS and len(parts) == 1:
        return QuotaEntity(desanitize(path), UNNAMED)
    if entity_type == USERS and len(parts) == 3 and parts[1] == CLIENTS:
        return QuotaEntity(desanitize(parts[0]), desanitize(parts[2]))
    raise ValueError(f"{entity_type}/{path} is neither a user nor a client")


class StoredQuotas:
    """Describes and alters quotas in the store. Methods raise KafkaError, StoreError and InvalidNode."""

    def __init__(self, configs: DynamicConfigs) -> None:
        self._configs = configs

    # --- describe -----------------------------------------------------------------------------------

    async def describe(
        self, components: Iterable[Component], *, strict: bool
    ) -> list[tuple[Entity, dict[str, float]]]:
        """The entities that match all components, and their quotas.

        `strict` leaves out entities that have a type which no component names.
        """
        by_type: dict[str, Component] = {}
        for component in components:
            _check_component(component, by_type)
            by_type[component.entity_type] = component
        names_client = USER in by_type or CLIENT_ID in by_type
        if names_client and IP in by_type:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Invalid entity filter component combination, IP filter component should not be used with "
                "user or clientId filter component.",
            )
        exact = not any(component.any_name for component in by_type.values())
        if (
            exact
            and (strict or IP in by_type or len(by_type) == 2)
            and "" in {c.name for c in by_type.values()}
        ):
            # Kafka reads the one node that can match, and fails on its invalid path.
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "")

        def matches(entity: Entity) -> bool:
            return all(t in entity and c.accepts(entity[t]) for t, c in by_type.items()) and not (
                strict and entity.keys() - by_type.keys()
            )

        found: list[tuple[Entity, dict[str, float]]] = []
        if IP not in by_type:
            for entity_type in (USERS, CLIENTS):
                for path in await self._configs.entities(entity_type):
                    pair = quota_entity(entity_type, path)
                    entity = {
                        t: n for t, n in ((USER, pair.user), (CLIENT_ID, pair.client_id)) if n != UNNAMED
                    }
                    if matches(entity):
                        await self._describe_one(entity, entity_type, path, _CLIENT_KEYS, found)
        if not names_client:
            for path in await self._configs.entities(IPS):
                entity = {IP: desanitize(path)}
                if matches(entity):
                    await self._describe_one(entity, IPS, path, _IP_KEYS, found)
        return found

    async def _describe_one(
        self,
        entity: Entity,
        entity_type: str,
        path: str,
        keys: Mapping[str, int | None],
        found: list[tuple[Entity, dict[str, float]]],
    ) -> None:
        config = await self._configs.entity_config(entity_type, path)
        values = {name: float(text) for name, text in config.items() if name in keys}
        if values:
            found.append((entity, values))

    # --- alter --------------------------------------------------------------------------------------

    async def alter(
        self, entity: Entity, operations: Iterable[tuple[str, float | None]], *, validate_only: bool
    ) -> None:
        """Set quotas of an entity, or remove them (None)."""
        entity_type, path, keys = await _locate(entity)
        config = await self._configs.entity_config(entity_type, path)
        for name, value in operations:
            if value is None:
                config.pop(name, None)
            else:
                config[name] = _stored_text(name, value, keys, may_be_credential=entity_type == USERS)
        if validate_only:
            return
        known = set(keys)
        if entity_type == USERS and path != znodes.DEFAULT_ENTITY and "/" not in path:
            known |= _CREDENTIALS
        unknown = config.keys() - known
        if unknown:
            raise _unexpected(f"{entity_type}/{path} has unknown settings: {', '.join(sorted(unknown))}")
        if entity_type == IPS and any(int(text) < 0 for text in config.values()):
            raise _unexpected(f"{entity_type}/{path} would be negative")
        await self._configs.alter_entity(entity_type, path, config)


def _check_component(component: Component, others: Mapping[str, Component]) -> None:
    entity_type = component.entity_type
    if entity_type not in (USER, CLIENT_ID, IP):
        if entity_type == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{entity_type}' not supported")
    if entity_type in others:
        kind = "client" if entity_type == CLIENT_ID else entity_type
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate {kind} filter component entity type")


async def _locate(entity: Entity) -> tuple[str, str, Mapping[str, int | None]]:
    """(entity type of the node, path, allowed settings) of the entity in a request."""
    if not entity:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for entity_type, name in entity.items():
        if entity_type not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Empty {entity_type} not supported")
    if IP in entity:
        if len(entity) > 1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Invalid quota entity combination, IP entity should not be used with user/client ID entity.",
            )
        address = sanitize(entity[IP])
        if entity[IP] is not DEFAULT and not await _resolves(address):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{address} is not a valid IP or resolvable host.")
        return IPS, address, _IP_KEYS
    if USER not in entity:
        return CLIENTS, sanitize(entity[CLIENT_ID]), _CLIENT_KEYS
    user = sanitize(entity[USER])
    if CLIENT_ID in entity:
        return USERS, f"{user}/{CLIENTS}/{sanitize(entity[CLIENT_ID])}", _CLIENT_KEYS
    return USERS, user, _CLIENT_KEYS


async def _resolves(host: str) -> bool:
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None)
    except (socket.gaierror, UnicodeError):
        return False
    return True


def _stored_text(name: str, value: float, keys: Mapping[str, int | None], *, may_be_credential: bool) -> str:
    """The text that is stored for a value."""
    if name not in keys:
        if may_be_credential and name in _CREDENTIALS:
            raise _unexpected(f"{name} is no quota")
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {name}")
    most = keys[name]
    if most is None:
        return double_text(value)
    if math.isnan(value):
        return "0"  # Java's conversion of NaN
    whole = most if value >= most else -most - 1 if value <= -most - 1 else int(value + _EPSILON)
    if abs(float(whole) - value) > _EPSILON:
        kind = "LONG" if most == _LONG_MAX else "INT"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Configuration {name} must be a {kind} value")
    return str(whole)


def _unexpected(detail: str) -> KafkaError:
    """The error for requests that cause an unexpected exception in Kafka; it has no message."""
    log.info("Altering client quotas failed: %s", detail)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "")


OnQuotaEntity = Callable[[QuotaEntity, Mapping[str, str]], None]
OnAddress = Callable[[str | None, Mapping[str, str]], None]


def quota_listener(
    changed: OnQuotaEntity, address_changed: OnAddress, lookups: TaskSet
) -> Callable[[str, str, dict[str, str]], None]:
    """A listener for `DynamicConfigs`: calls `changed` for users and clients, and `address_changed` for IP
    addresses, resolved by `lookups` if the entity is a host name; None is the default of all addresses."""

    def on_config(entity_type: str, path: str, config: dict[str, str]) -> None:
        if entity_type != IPS:
            changed(quota_entity(entity_type, path), config)
        elif path == znodes.DEFAULT_ENTITY:
            address_changed(None, config)
        else:
            try:
                address_changed(str(ipaddress.ip_address(path)), config)
            except ValueError:
                lookup = lookups.start(_first_address(path))
                lookup.add_done_callback(lambda found: resolved(path, found, config))

    def resolved(host: str, found: asyncio.Future[str], config: dict[str, str]) -> None:
        if not found.cancelled():
            if found.exception() is None:
                address_changed(found.result(), config)
            else:
                log.error("Ignoring the quotas of ips/%s: %s", host, found.exception())

    return on_config


async def _first_address(host: str) -> str:
    found = await asyncio.get_running_loop().getaddrinfo(host, None)
    return str(found[0][4][0])
