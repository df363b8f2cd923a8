"""TLS, SASL or both for the connections of a listener, by Kafka's settings.

`SecureListeners` is made at the broker's start. ottla.server.network.listener calls it for each connection,
and about once a second to look for renewed certificates: Kafka takes a new key store when a setting changes
or the same location is set again (KIP-226), and so it is here. Where certificates are renewed in place, as
Kubernetes does with a mounted Secret, no such request is sent, so a changed file is taken too. A store that
cannot be read leaves the present one in use.

Invariants: connections keep the TLS context that they were made with; a PLAINTEXT listener has no part here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ottla.metadata.config import BrokerConfig
from ottla.metadata.listener_security import ListenerSecurity
from ottla.metadata.listeners import Listener
from ottla.metadata.scram_credentials import ScramCredentials
from ottla.ports import Clock, Ports
from ottla.ports.workers import Threads
from ottla.security import jaas
from ottla.security.mechanisms import PlainServer, SaslServer, plain_users
from ottla.security.oauth import OAuthServer, UnsecuredRules, Validate
from ottla.security.principals import Identity, Principal, PrincipalBuilder, principal_builder
from ottla.security.scram import MECHANISMS as SCRAM
from ottla.security.scram import ScramCredential, ScramServer
from ottla.security.signed_tokens import SignedRules
from ottla.security.stores import StoreProblem
from ottla.security.tls import TlsSettings, server_context
from ottla.server.network.authenticator import Authenticator, Mechanism, SaslRules
from ottla.server.network.channel import Connection, KafkaChannel
from ottla.server.network.key_sets import Refreshes, RefreshingKeySet
from ottla.server.network.plaintext_transport import PlaintextTransport
from ottla.server.network.tls_transport import TlsTransport

log = logging.getLogger(__name__)

HANDSHAKE_THREADS: Final = 2

TokenLookup = Callable[[str, str], tuple[ScramCredential, str, int] | None]
"""(mechanism, id of a delegation token) -> its credential, its owner's name, its expiry as wall time in
ms."""


class SecurityProblem(Exception):
    """The security settings of a listener cannot be used; the message is one line."""


class SecureListener:
    """One listener that is not PLAINTEXT."""

    def __init__(
        self,
        listener: Listener,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        key_set_threads: Callable[[], Threads],
        *,
        credentials: ScramCredentials,
        tokens: TokenLookup,
        clock: Clock,
    ) -> None:
        """Raises SecurityProblem."""
        self.name = listener.name
        self._protocol = listener.protocol
        self._config = config
        self._loop = loop
        self._threads = threads
        self._key_set_threads = key_set_threads
        self._credentials = credentials
        self._tokens = tokens
        self._clock = clock
        self._max_request_bytes = config.get_int("socket.request.max.bytes")
        self._context: ssl.SSLContext | None = None
        self._tls: tuple[TlsSettings, tuple[object, ...]] | None = None
        self._rules: SaslRules | None = None
        self._key_set: RefreshingKeySet | None = None
        try:
            self._builder = self._make_builder()
            if self.is_tls:
                self._set_tls(*self._load_tls_settings())
            if self.is_sasl:
                self._rules = self._make_rules()
        except (StoreProblem, ValueError) as problem:
            raise SecurityProblem(f"listener {self.name}: {problem}") from None

    async def start(self) -> None:
        """Fetch the key set, if the listener has one. Raises SecurityProblem."""
        if self._key_set is not None:
            try:
                await self._key_set_threads().submit(self._key_set.fetch_first)
            except ValueError as problem:
                raise SecurityProblem(f"listener {self.name}: {problem}") from None

    @property
    def is_tls(self) -> bool:
        return self._protocol.endswith("SSL")

    @property
    def is_sasl(self) -> bool:
        return self._protocol.startswith("SASL_")

    @property
    def _security(self) -> ListenerSecurity:
        return self._config.security(self.name)

    def _make_builder(self) -> PrincipalBuilder:
        security = self._security
        return principal_builder(
            security.get("principal.builder.class") or "",
            security.get("ssl.principal.mapping.rules") or "DEFAULT",
        )

    # --- TLS ----------------------------------------------------------------------------------------

    def _load_tls_settings(self) -> tuple[TlsSettings, tuple[object, ...]]:
        settings = TlsSettings.of(self._security.get)
        return settings, settings.stamp()

    def _set_tls(self, settings: TlsSettings, stamp: tuple[object, ...]) -> None:
        self._context = server_context(settings)
        self._tls = settings, stamp

    def problem(self, of_broker: Mapping[str, str]) -> str | None:
        """What is wrong with these as the broker's dynamic settings; None if nothing is."""
        config = self._config
        wanted = ListenerSecurity(self.name, of_broker, config.of_cluster, config.static)
        try:
            if self.is_tls:
                server_context(TlsSettings.of(wanted.get))
        except StoreProblem as problem:
            return f"Validation of dynamic config update of SSLFactory failed: {problem}"
        try:
            for mechanism in wanted.get_list("sasl.enabled.mechanisms") if self.is_sasl else ():
                if mechanism not in SCRAM:
                    self._login(mechanism, wanted)
        except ValueError as unusable:
            return str(unusable)
        return None

    def renew(self) -> None:
        """Reload key store, trust store or key set if settings or files have changed, or a refresh is due."""
        if self._key_set is not None:
            self._key_set.tick()
        if not self.is_tls:
            return
        found = self._load_tls_settings()
        if found == self._tls:
            return
        try:
            self._set_tls(*found)
        except StoreProblem as problem:
            self._tls = found  # logged once
            log.error(
                "listener %s keeps its certificates, the new ones cannot be used: %s", self.name, problem
            )
        else:
            log.info("listener %s has reloaded its key and trust stores", self.name)

    # --- SASL ---------------------------------------------------------------------------------------

    def _make_rules(self) -> SaslRules:
        security = self._security
        mechanisms = {
            name: Mechanism(
                self._starter(name, security), security.get_int("connections.max.reauth.ms", name)
            )
            for name in security.get_list("sasl.enabled.mechanisms")
        }
        delay_ms = self._config.get_int("connection.failed.authentication.delay.ms")
        return SaslRules(mechanisms, delay_ms, self._principal_of_sasl, self._clock.wall_ms)

    def _starter(self, mechanism: str, security: ListenerSecurity) -> Callable[[], SaslServer]:
        if mechanism in SCRAM:
            lookup, decoy = self._credentials.of(mechanism), self._credentials.decoy(mechanism)
            return lambda: ScramServer(mechanism, lookup, partial(self._tokens, mechanism), decoy)
        login = self._login(mechanism, security)
        if mechanism == "OAUTHBEARER":
            validate = self._token_validation(login.options)
            return lambda: OAuthServer(validate, self._token_refused)
        assert mechanism == "PLAIN", "the config's checks let no other through"
        users = plain_users(login.options)
        return lambda: PlainServer(users)

    def _login(self, mechanism: str, security: ListenerSecurity) -> jaas.Login:
        """The sasl.jaas.config of a mechanism that requires one. Raises ValueError."""
        text = security.of_mechanism(mechanism, "sasl.jaas.config")
        if text is None:
            raise ValueError(
                f"listener.name.{self.name.lower()}.{mechanism.lower()}.sasl.jaas.config: not set"
            )
        try:
            return jaas.parse(text)
        except ValueError as problem:
            raise ValueError(f"sasl.jaas.config of {mechanism}: {problem}") from None

    def _token_validation(self, options: Mapping[str, str]) -> Validate:
        """Verify tokens by the key set if one is configured, even without Kafka's callback handler for signed
        tokens (Kafka then accepts unsecured tokens). Raises ValueError."""
        security, name = self._security, "OAUTHBEARER"
        url = security.of_mechanism(name, "sasl.oauthbearer.jwks.endpoint.url")
        handler = security.of_mechanism(name, "sasl.server.callback.handler.class") or ""
        if not url:
            if handler.endswith(".OAuthBearerValidatorCallbackHandler"):
                raise ValueError(f"sasl.oauthbearer.jwks.endpoint.url: needed for {handler}")
            log.warning("listener %s accepts unsecured OAUTHBEARER tokens: for development only", self.name)
            return UnsecuredRules.of(options).validate

        def seconds(setting: str) -> float:
            found = security.get_int(f"sasl.oauthbearer.jwks.endpoint.{setting}", name)
            if found <= 0:
                raise ValueError(f"sasl.oauthbearer.jwks.endpoint.{setting}={found}: must be positive")
            return found / 1000

        self._key_set = keys = RefreshingKeySet(
            url,
            options,
            self._key_set_threads(),
            self._clock.monotonic_s,
            Refreshes(seconds("refresh.ms"), seconds("retry.backoff.ms"), seconds("retry.backoff.max.ms")),
        )
        rules = SignedRules(
            security.get_list("sasl.oauthbearer.expected.audience", name),
            (security.of_mechanism(name, "sasl.oauthbearer.expected.issuer") or "").strip() or None,
            security.get_int("sasl.oauthbearer.clock.skew.seconds", name),
            security.of_mechanism(name, "sasl.oauthbearer.scope.claim.name") or "scope",
            security.of_mechanism(name, "sasl.oauthbearer.sub.claim.name") or "sub",
        )
        return lambda token, now_ms: rules.validate(token, keys.select, now_ms)

    def _token_refused(self, reason: str) -> None:
        log.info("listener %s: token rejected: %s", self.name, reason)

    # --- connections ------------------------------------------------------------------------------------

    def adopt(self, sock: socket.socket, channel: KafkaChannel) -> None:
        """Make the transport of a socket for a channel. Raises OSError, and ValueError for a socket whose
        client has disconnected."""
        authenticator = None
        if self._rules is not None:
            authenticator = Authenticator(self._rules, self._loop, channel.on_frame, self._authenticated)
            channel.authentication = authenticator
            channel.on_frame = authenticator.on_frame
            channel.set_max_request_bytes(self._security.get_int("sasl.server.max.receive.size"))
        if self._context is None:
            PlaintextTransport(sock, channel, self._loop)
        else:
            wrapped = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            TlsTransport(wrapped, channel, self._loop, self._threads, self._secured)
        if authenticator is not None:
            authenticator.start_deadline(channel)

    def _secured(self, channel: KafkaChannel) -> None:
        """The TLS handshake is done. Raises ValueError for a certificate without a principal."""
        if not self.is_sasl:
            channel.principal = self._builder.build(self._identity(channel))

    def _identity(self, connection: Connection) -> Identity:
        assert isinstance(connection, KafkaChannel)
        return Identity(self._protocol, self.name, connection.peer_host, connection.transport.certificate)

    def _principal_of_sasl(self, connection: Connection, mechanism: str, exchange: SaslServer) -> Principal:
        return self._builder.build(
            self._identity(connection)._replace(
                mechanism=mechanism, authorization_id=exchange.authorization_id
            )
        )

    def _authenticated(self, connection: Connection) -> None:
        assert isinstance(connection, KafkaChannel)
        connection.set_max_request_bytes(self._max_request_bytes)


class SecureListeners:
    """All listeners of a broker that are not PLAINTEXT."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        credentials: ScramCredentials,
        tokens: TokenLookup,
        ports: Ports,
    ) -> None:
        """Raises SecurityProblem."""
        self._workers = ports.workers
        self._threads = ports.workers.threads("tls-handshake", HANDSHAKE_THREADS)
        self._fetching: Threads | None = None
        self.by_name = {
            listener.name: SecureListener(
                listener,
                config,
                loop,
                self._threads,
                self._key_set_threads,
                credentials=credentials,
                tokens=tokens,
                clock=ports.clock,
            )
            for listener in config.listeners
            if listener.protocol != "PLAINTEXT"
        }

    async def start(self) -> None:
        """Call before the listeners accept connections. Raises SecurityProblem."""
        for listener in self.by_name.values():
            await listener.start()

    def _key_set_threads(self) -> Threads:
        """A thread of their own: an OAuth server that does not answer must not delay TLS handshakes."""
        if self._fetching is None:
            self._fetching = self._workers.threads("key-sets", 1)
        return self._fetching

    def renew(self) -> None:
        for listener in self.by_name.values():
            listener.renew()

    def problem(self, of_broker: Mapping[str, str]) -> str | None:
        """What is wrong with these as the broker's dynamic settings; None if nothing is."""
        problems = (listener.problem(of_broker) for listener in self.by_name.values())
        return next(filter(None, problems), None)

    async def stop(self) -> None:
        await self._threads.stop()
        if self._fetching is not None:
            await self._fetching.stop()
