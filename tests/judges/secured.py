"""Secured brokers, Apache Kafka's and ours with the same settings, and raw connections to them.

`SECURED` are the settings of a broker with a listener of every protocol and PLAINTEXT between brokers;
`RawSaslConnection` sends SASL messages one by one.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from ottla.protocol import codec, frames
from ottla.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.protocol.types import Message
from ottla.security.mechanisms import plain_token
from ottla.security.scram import ScramClient
from tests.certificates import PASSWORD, Authority

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ANNA, ANNAS_PASSWORD = "anna", 'geh"eim\\;= '

_quoted = ANNAS_PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
JAAS = f'{PLAIN_MODULE} required user_{ANNA}="{_quoted}" user_bert="bert";'


class Place:
    """Keys and certificates of one test module, in files."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority()
        self.authority_pem = self.authority.write(directory / "authority.pem")
        self.broker_pem = self.authority.sign("broker").write_pem(directory / "broker.pem")
        self.client_pem = self.authority.sign("Anna", unit="Clients").write_pem(directory / "client.pem")
        self.client_p12 = self.authority.sign("Bert", unit="Clients").write_pkcs12(directory / "client.p12")

    def settings(self, ports: dict[str, int], host: str = "127.0.0.1") -> dict[str, str]:
        """The settings of a broker with these listeners: protocol -> port."""
        return {
            "listeners": ",".join(f"{protocol}://{host}:{port}" for protocol, port in ports.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker_pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority_pem),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=Clients.*$/$1/L,DEFAULT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        }

    def client(self, *, mechanism: str | None, jaas: str = "", certificate: bool = False) -> dict[str, str]:
        """Properties of a Java client over TLS."""
        properties = {
            "security.protocol": "SSL" if mechanism is None else "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority_pem),
        }
        if mechanism is not None:
            properties |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
        if certificate:
            properties |= {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(self.client_p12),
                "ssl.keystore.password": PASSWORD,
                "ssl.key.password": PASSWORD,
            }
        return properties

    def trusting(self, *, certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority_pem))
        if certificate:
            context.load_cert_chain(self.client_pem)
        return context


def write_properties(path: Path, properties: dict[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace(" ", "\\ ")

    path.write_text("".join(f"{name}={escaped(text)}\n" for name, text in properties.items()))
    return str(path)


class ConnectionClosed(Exception):
    """The broker has closed the connection."""


class RawSaslConnection:
    """A raw connection: it sends each request in any state of the broker's authentication."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._sock = sock if context is None else context.wrap_socket(sock, server_hostname="127.0.0.1")
        self._correlation = 0

    def __enter__(self) -> RawSaslConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, data: bytes) -> None:
        self._sock.sendall(len(data).to_bytes(4, "big") + data)

    def receive(self) -> bytes:
        """The next frame. Raises ConnectionClosed."""
        size = int.from_bytes(self._read(4), "big")
        return self._read(size)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self._sock.recv(count - len(data))
            except (ConnectionResetError, ssl.SSLEOFError):
                piece = b""
            if not piece:
                raise ConnectionClosed
            data += piece
        return data

    def ask(self, request: Message, version: int) -> Message:
        """Sends a request and returns the response. Raises ConnectionClosed."""
        self._correlation += 1
        frame = frames.encode_request(request, version, self._correlation, "raw")
        self._sock.sendall(frame)
        answer = memoryview(self.receive())
        offset = frames.response_body_offset(request.api_key, version, answer)
        return codec.decode(frames.RESPONSES[request.api_key], version, answer, offset)

    def handshake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        answer = self.ask(SaslHandshakeRequest(mechanism=mechanism), version)
        assert isinstance(answer, SaslHandshakeResponse)
        return answer

    def authenticate(self, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=token), version)
        assert isinstance(answer, SaslAuthenticateResponse)
        return answer

    def log_in(self, user: str = ANNA, password: str = ANNAS_PASSWORD) -> SaslAuthenticateResponse:
        """Logs in by PLAIN."""
        self.handshake("PLAIN")
        return self.authenticate(plain_token(user, password))

    def log_in_by_scram(
        self, mechanism: str, user: str, password: str, *, by_token: bool = False
    ) -> SaslAuthenticateResponse:
        """Logs in by SCRAM; returns the first response with an error, or the last."""
        self.handshake(mechanism)
        client = ScramClient(mechanism, user, password, by_token=by_token)
        answer = self.authenticate(client.first())
        if answer.error_code == 0:
            answer = self.authenticate(client.final(bytes(answer.auth_bytes)))
        if answer.error_code == 0:
            client.check(bytes(answer.auth_bytes))
        return answer
