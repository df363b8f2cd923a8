"""The security of a client's connections: protocol, TLS and SASL login, from Kafka's settings for clients.

A `ClientSecurity` is made once for a client (a broker for its inter-broker listener, the command line for
--command-config) and given to `ottla.wire.connection`, which calls it for each connection, so that renewed
certificates are used.

A SASL exchange is a generator: it yields a token to send, and is sent the broker's answer; when it returns,
the broker has accepted the login. It raises SaslFailed if the broker does not authenticate itself.
"""

from __future__ import annotations

import ssl
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
from ottla.security.tls import Get, TlsSettings, client_context

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


PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ClientSecurity:
    """See the module. Not thread-safe."""

    def __init__(self, protocol: str, get: Get, mechanism: str | None, jaas_config: str | None) -> None:
        """`get` returns settings of ssl.* and sasl.oauthbearer.*. Raises ValueError, also for unusable
        stores."""
        if protocol not in PROTOCOLS:
            raise ValueError(f"security.protocol={protocol}: must be one of {', '.join(PROTOCOLS)}")
        self.mechanism = mechanism if protocol.startswith("SASL_") else None
        url = get("sasl.oauthbearer.token.endpoint.url")
        self._login = None if self.mechanism is None else login(self.mechanism, jaas_config, url)
        self._get: Get | None = get if protocol.endswith("SSL") else None
        self._stamp: object = None
        self._context: ssl.SSLContext | None = None
        self.context()

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> ClientSecurity:
        """From the settings of a Kafka client. Raises ValueError."""
        return cls(
            properties.get("security.protocol", "PLAINTEXT").upper(),
            properties.get,
            properties.get("sasl.mechanism", "GSSAPI"),
            properties.get("sasl.jaas.config"),
        )

    def context(self) -> ssl.SSLContext | None:
        """The TLS context of the next connection; None without TLS. Raises StoreProblem."""
        if self._get is None:
            return None
        settings = TlsSettings.of(self._get)
        stamp = settings, settings.stamp()
        if stamp != self._stamp:
            self._context, self._stamp = client_context(settings), stamp
        return self._context

    @property
    def login(self) -> Callable[[], Exchange] | None:
        """Begins the exchange of a login; None without SASL."""
        return self._login
