"""The security of a client's connections: protocol, TLS and SASL login, from Kafka's settings for clients.

A `ClientSecurity` is made once for a client (a broker for its inter-broker listener, the command line for
--command-config) and given to `ottla.wire.connection`, which calls it for each connection, so that renewed
certificates are used.

A SASL exchange is a generator: it yields a token to send, and is sent the broker's answer; when it returns,
the broker has accepted the login. It raises SaslFailed if the broker does not authenticate itself. For
OAUTHBEARER a `Login` has `prepare`, which obtains the token before the exchange begins.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ottla.security import jaas
from ottla.security.mechanisms import plain_token
from ottla.security.oauth import first_message
from ottla.security.scram import MECHANISMS as SCRAM
from ottla.security.scram import ScramClient
from ottla.security.tls import Get, TlsSettings, client_context

if TYPE_CHECKING:
    from ottla.security.bearer_tokens import TokenProvider, TokenSource

Exchange: TypeAlias = Generator[bytes, bytes, None]


class Login(NamedTuple):
    """A SASL mechanism, and what begins its exchange."""

    mechanism: str
    begin: Callable[[], Exchange]
    prepare: Callable[[], Awaitable[None]] | None = None
    """Awaited before each exchange. Raises OSError, TimeoutError, KafkaError."""


def login(
    mechanism: str, jaas_config: str | None, get: Get, token_provider: TokenProvider | None = None
) -> Login:
    """By `sasl.mechanism` and `sasl.jaas.config`; for OAUTHBEARER also by other settings of sasl.*, which
    `get` returns, and with an application's own tokens. Raises ValueError."""
    if mechanism == "OAUTHBEARER":
        return _bearer(jaas_config, get, token_provider)
    if token_provider is not None:
        raise ValueError(f"sasl.mechanism={mechanism}: sasl.oauth.token.provider is for OAUTHBEARER only")
    if jaas_config is None:
        raise ValueError(f"sasl.jaas.config: not set for {mechanism}")
    options = jaas.parse(jaas_config).options
    if mechanism == "PLAIN":
        user, password = _account(options)
        return Login(mechanism, lambda: _plain(user, password))
    if mechanism in SCRAM:
        user, password = _account(options)
        by_token = options.get("tokenauth", "").lower() == "true"
        return Login(mechanism, lambda: _scram(ScramClient(mechanism, user, password, by_token=by_token)))
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


def _bearer(jaas_config: str | None, get: Get, provider: TokenProvider | None) -> Login:
    from ottla.security.bearer_tokens import token_source  # its modules of HTTP are for this alone

    options = {} if jaas_config is None else jaas.parse(jaas_config).options
    if jaas_config is None and provider is None and not get("sasl.oauthbearer.token.endpoint.url"):
        raise ValueError("sasl.jaas.config: not set for OAUTHBEARER")
    source = token_source(options, get, provider)
    return Login("OAUTHBEARER", lambda: _present(source), source.prepare)


def _present(source: TokenSource) -> Exchange:
    token = source.token
    error = yield first_message(token.value, token.extensions)
    if error:
        yield b"\x01"  # the broker responds with the error


PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ClientSecurity:
    """See the module. Not thread-safe."""

    def __init__(
        self,
        protocol: str,
        get: Get,
        mechanism: str | None,
        jaas_config: str | None,
        token_provider: TokenProvider | None = None,
    ) -> None:
        """`get` returns settings of ssl.* and sasl.*, None for those that are not set. Raises ValueError,
        also for unusable stores."""
        if protocol not in PROTOCOLS:
            raise ValueError(f"security.protocol={protocol}: must be one of {', '.join(PROTOCOLS)}")
        self.login: Login | None = None
        """None without SASL."""
        if protocol.startswith("SASL_") and mechanism is not None:
            self.login = login(mechanism, jaas_config, get, token_provider)
        self._get: Get | None = get if protocol.endswith("SSL") else None
        self._stamp: object = None
        self._context: ssl.SSLContext | None = None
        self.context()

    @classmethod
    def of_properties(
        cls, properties: Mapping[str, str], token_provider: TokenProvider | None = None
    ) -> ClientSecurity:
        """From the settings of a Kafka client. Raises ValueError."""
        return cls(
            properties.get("security.protocol", "PLAINTEXT").upper(),
            properties.get,
            properties.get("sasl.mechanism", "GSSAPI"),
            properties.get("sasl.jaas.config"),
            token_provider,
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
