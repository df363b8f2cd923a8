"""SASL on the client's side: the tokens of a client.

Called by `clients`. An exchange is a generator: it yields a token to send, and is sent the broker's answer;
when it returns, the broker has accepted the login. It raises SaslFailed if the broker does not authenticate
itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from ottla.environment import environment
from ottla.security import jaas
from ottla.security.mechanisms import plain_token
from ottla.security.oauth import first_message, unsecured_token
from ottla.security.scram import MECHANISMS as SCRAM
from ottla.security.scram import ScramClient

_CLAIM: Final = "unsecuredLoginStringClaim_"

Exchange: TypeAlias = Generator[bytes, bytes, None]


def login(mechanism: str, jaas_config: str | None, token_url: str | None = None) -> Callable[[], Exchange]:
    """A function that begins an exchange, by `sasl.mechanism`, `sasl.jaas.config` and, for OAUTHBEARER,
    `sasl.oauthbearer.token.endpoint.url`. Raises ValueError."""
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
    if mechanism == "OAUTHBEARER":
        return _bearer(options, token_url)
    raise ValueError(f"sasl.mechanism={mechanism}: not supported; PLAIN, {', '.join(SCRAM)}, OAUTHBEARER are")


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


def _bearer(options: Mapping[str, str], token_url: str | None) -> Callable[[], Exchange]:
    """A token from a file, read for each login, since it may be renewed; or an unsecured token."""
    if token_url:
        if not token_url.startswith("file:"):
            raise ValueError(f"sasl.oauthbearer.token.endpoint.url={token_url}: only file: is supported")
        path = Path(unquote(urlsplit(token_url).path))
        return lambda: _present(path.read_text().strip())
    claims = {name.removeprefix(_CLAIM): text for name, text in options.items() if name.startswith(_CLAIM)}
    if "sub" not in claims:
        raise ValueError(f"sasl.jaas.config: {_CLAIM}sub is not set, nor sasl.oauthbearer.token.endpoint.url")
    lifetime_s = int(options.get("unsecuredLoginLifetimeSeconds", "3600"))

    def begin() -> Exchange:
        now_s = environment.get().wall_ms() / 1000
        return _present(unsecured_token({**claims, "iat": now_s, "exp": now_s + lifetime_s}))

    return begin


def _present(token: str) -> Exchange:
    error = yield first_message(token)
    if error:
        yield b"\x01"  # the broker responds with the error
