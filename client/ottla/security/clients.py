"""The security of a client's connections: protocol, TLS and login, from Kafka's settings for clients.

Made once for a client (a broker for its inter-broker listener, the command line for --command-config) and
given to `ottla.wire.connection`, which calls it for each connection, so that renewed certificates are used.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Final

from ottla.security.logins import Exchange, login
from ottla.security.tls import Get, TlsSettings, client_context

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
