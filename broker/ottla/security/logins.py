"""SASL from the client's side: what a client answers to a broker, token by token.

Called by `clients`. An exchange is a generator: it yields what is to be sent, and is sent what the broker
answered; at its end the broker has let us in. It raises SaslFailed where the broker cannot be believed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias

from ottla.security import jaas
from ottla.security.mechanisms import plain_token
from ottla.security.scram import MECHANISMS as SCRAM
from ottla.security.scram import ScramClient

Exchange: TypeAlias = Generator[bytes, bytes, None]


def login(mechanism: str, jaas_config: str | None) -> Callable[[], Exchange]:
    """What begins an exchange, by `sasl.mechanism` and `sasl.jaas.config`. Raises ValueError."""
    if jaas_config is None:
        raise ValueError(f"sasl.jaas.config: not set for {mechanism}")
    options = jaas.parse(jaas_config).options
    if mechanism == "PLAIN":
        user, password = _account(options)
        return lambda: _plain(user, password)
    if mechanism in SCRAM:
        user, password = _account(options)
        by_token = options.get("tokenauth", "").lower() == "true"
        return lambda: _scram(ScramClient(mechanism, user, password, by_token=by_token))
    raise ValueError(f"sasl.mechanism={mechanism}: not served; PLAIN, {', '.join(SCRAM)} are")


def _account(options: Mapping[str, str]) -> tuple[str, str]:
    try:
        return options["username"], options["password"]
    except KeyError as missing:
        raise ValueError(f"sasl.jaas.config: {missing.args[0]} is not set") from None


def _plain(user: str, password: str) -> Exchange:
    yield plain_token(user, password)


def _scram(client: ScramClient) -> Exchange:
    challenge = yield client.first()
    last = yield client.final(challenge)
    client.check(last)
