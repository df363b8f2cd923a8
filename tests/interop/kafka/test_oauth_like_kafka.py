"""OAUTHBEARER with signed tokens: Apache Kafka 3.9.1 and Ottla, with the same settings, answer alike."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench.apache_kafka import KafkaBroker
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import MetadataRequest
from ottla.security.oauth import first_message, unsecured_token
from tests.certificates import Authority
from tests.judges.oidc import AUDIENCE, ISSUER, OAuthServer, sign
from tests.judges.secured import OAUTH_MODULE, ConnectionClosed, RawSaslConnection
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)
LISTENERS = ("PLAINTEXT", "SIGNED", "ANY", "FILE")
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


class Pair(NamedTuple):
    server: OAuthServer
    ports: dict[str, dict[str, int]]
    """Of each broker: listener -> port."""
    logs: dict[str, Path]

    def same(self, scenario: Callable[[dict[str, int]], object]) -> object:
        """What both brokers answer, which must be the same."""
        found = {name: scenario(ports) for name, ports in self.ports.items()}
        assert found["Ottla"] == found["Apache Kafka"]
        return found["Ottla"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("oauth")
    authority = Authority()
    trusted = authority.write(directory / "authority.pem")
    with ExitStack() as running:
        certificate = authority.sign("localhost").write_pem(directory / "server.pem")
        server = running.enter_context(OAuthServer(certificate))
        key_set = directory / "keys.json"
        key_set.write_text(json.dumps(server.key_set()))
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        running.callback(zookeeper.stop)
        zookeeper.start()
        ports = {
            name: {listener: free_port() for listener in LISTENERS} for name in ("Apache Kafka", "Ottla")
        }

        def settings(own: dict[str, int]) -> dict[str, str]:
            jaas = f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="b"'
            found = {
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in own.items()),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,"
                + ",".join(f"{name}:SASL_PLAINTEXT" for name in LISTENERS[1:]),
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "connection.failed.authentication.delay.ms": "0",
            }
            for name in LISTENERS[1:]:
                prefix = f"listener.name.{name.lower()}."
                found |= {
                    f"{prefix}oauthbearer.sasl.server.callback.handler.class": HANDLER,
                    f"{prefix}oauthbearer.sasl.jaas.config": f"{jaas};",
                    f"{prefix}sasl.oauthbearer.jwks.endpoint.url": server.jwks_url,
                    f"{prefix}sasl.oauthbearer.expected.audience": f"{AUDIENCE},other",
                    f"{prefix}sasl.oauthbearer.expected.issuer": ISSUER,
                }
            found["listener.name.file.sasl.oauthbearer.jwks.endpoint.url"] = key_set.as_uri()
            for name in ("signed", "any"):
                found[f"listener.name.{name}.oauthbearer.sasl.jaas.config"] = (
                    f'{jaas} ssl.truststore.type="PEM" ssl.truststore.location="{trusted}";'
                )
            del found["listener.name.any.sasl.oauthbearer.expected.audience"]
            del found["listener.name.any.sasl.oauthbearer.expected.issuer"]
            found |= {
                "listener.name.any.sasl.oauthbearer.sub.claim.name": "azp",
                "listener.name.any.sasl.oauthbearer.scope.claim.name": "scp",
                "listener.name.any.sasl.oauthbearer.clock.skew.seconds": "0",
                "listener.name.any.connections.max.reauth.ms": "100000",
            }
            return found

        java = KafkaBroker(
            directory / "kafka",
            f"{zookeeper.connect}/kafka",
            port=ports["Apache Kafka"]["PLAINTEXT"],
            settings=settings(ports["Apache Kafka"]),
        )
        ours = BrokerProcess(0, directory / "ottla", ports["Ottla"]["PLAINTEXT"])
        running.callback(java.stop)
        running.callback(ours.stop)
        ours.write_properties(f"{zookeeper.connect}/ottla", settings(ports["Ottla"]))
        ours.start_and_wait()
        java.start()
        yield Pair(server, ports, {"Ottla": ours.directory / "broker.log"})


def log_in(port: int, message: bytes) -> object:
    """The broker's answers to the first message of a client, and to the \\x01 after an error."""
    with RawSaslConnection(port) as connection:
        connection.handshake("OAUTHBEARER")
        try:
            answer = connection.authenticate(message)
        except ConnectionClosed:
            return "gone"
        minutes = round(answer.session_lifetime_ms / 60_000)
        found: list[object] = [(answer.error_code, answer.error_message, bytes(answer.auth_bytes), minutes)]
        if answer.error_code == 0 and not answer.auth_bytes:
            try:
                assert connection.ask(MetadataRequest(topics=[]), 5)
            except ConnectionClosed:
                found.append("gone: the session has ended")
        elif answer.error_code == 0:
            last = connection.authenticate(b"\x01")
            found.append((last.error_code, last.error_message, bytes(last.auth_bytes), 0))
            with pytest.raises(ConnectionClosed):
                connection.receive()
        return found


ACCEPTED = [(0, "", b"", 10)]
REFUSED = [
    (0, "", b'{"status":"invalid_token"}', 0),
    (ErrorCode.SASL_AUTHENTICATION_FAILED, '{"status":"invalid_token"}', b"", 0),
]
TOKENS: dict[str, tuple[Callable[[OAuthServer, int], str], bool]] = {
    "of an RSA key": (lambda server, now: server.issue("rsa-1"), True),
    "of an EC key": (lambda server, now: server.issue("ec-1"), True),
    "one of several audiences": (lambda server, now: server.issue(aud=["x", "other"]), True),
    "expired within the skew": (lambda server, now: server.issue(iat=now - 700, exp=now - 5), True),
    "issued in the future": (lambda server, now: server.issue(iat=now + 300), True),
    "scopes": (lambda server, now: server.issue(scope=["read", "write"]), True),
    "a number as scope": (lambda server, now: server.issue(scope=7), True),
    "expired": (lambda server, now: server.issue(iat=now - 700, exp=now - 60), False),
    "not valid yet": (lambda server, now: server.issue(nbf=now + 60), False),
    "valid soon": (lambda server, now: server.issue(nbf=now + 20), True),
    "expires before it was issued": (lambda server, now: server.issue(iat=now + 900), False),
    "of another audience": (lambda server, now: server.issue(aud="somebody else"), False),
    "without an audience": (lambda server, now: server.issue(aud=None), False),
    "a number as audience": (lambda server, now: server.issue(aud=7), False),
    "of another issuer": (lambda server, now: server.issue(iss="https://other.example"), False),
    "without an issuer": (lambda server, now: server.issue(iss=None), False),
    "without expiry": (lambda server, now: server.issue(exp=None), False),
    "a text as expiry": (lambda server, now: server.issue(exp=str(now + 600)), False),
    "without time of issue": (lambda server, now: server.issue(iat=None), False),
    "without a subject": (lambda server, now: server.issue(sub=None), False),
    "a number as subject": (lambda server, now: server.issue(sub=7), False),
    "an empty subject": (lambda server, now: server.issue(sub="  "), False),
    "an empty scope": (lambda server, now: server.issue(scope=""), False),
    "a scope twice": (lambda server, now: server.issue(scope=["read", "read"]), False),
    "a number as id": (lambda server, now: server.issue(jti=7), False),
    "bad signature": (lambda server, now: _spoilt(server.issue()), False),
    "signed by another key": (lambda server, now: _by_another_key(server, "rsa-1"), False),
    "of an unknown key": (lambda server, now: _by_another_key(server, "nobody's"), False),
    "of a key id of another type": (lambda server, now: _by_another_key(server, "ec-1"), False),
    "no key id, of an RSA key": (lambda server, now: sign(server.keys["rsa-1"], None, _claims(server)), True),
    "no key id, of an EC key": (lambda server, now: sign(server.keys["ec-1"], None, _claims(server)), True),
    "RS512": (lambda server, now: sign(server.keys["rsa-1"], "rsa-1", _claims(server), "RS512"), True),
    "PS256": (lambda server, now: sign(server.keys["rsa-1"], "rsa-1", _claims(server), "PS256"), True),
    "no algorithm": (lambda server, now: unsecured_token(_claims(server)), False),
    "no algorithm, with a signature": (lambda server, now: unsecured_token(_claims(server)) + "c2ln", False),
    "HMAC with the public key": (lambda server, now: _by_public_key(server), False),
    "no JSON": (lambda server, now: "YQ.YQ.YQ", False),
    "two parts": (lambda server, now: "YQ.YQ", False),
}


def _claims(server: OAuthServer) -> dict[str, object]:
    found: dict[str, object] = jwt.decode(server.issue(), options={"verify_signature": False})
    return found


def _spoilt(token: str) -> str:
    rest, _, signature = token.rpartition(".")
    return f"{rest}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}"


def _by_another_key(server: OAuthServer, kid: str) -> str:
    return sign(rsa.generate_private_key(65537, 2048), kid, _claims(server))


def _by_public_key(server: OAuthServer) -> str:
    """HS256, with the RSA key's public half as the secret; PyJWT refuses to sign that itself."""
    pem = server.keys["rsa-1"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = json.dumps({"alg": "HS256", "typ": "JWT", "kid": "rsa-1"})
    parts = [_encoded(text.encode()) for text in (header, json.dumps(_claims(server)))]
    hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    return ".".join((*parts, _encoded(hmac.sign(".".join(parts).encode(), pem))))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize("listener", ["SIGNED", "FILE"])
def test_tokens_are_accepted_and_refused_as_by_kafka(pair: Pair, listener: str) -> None:
    now_s = int(time.time())
    tokens = {name: make(pair.server, now_s) for name, (make, _) in TOKENS.items()}

    def scenario(ports: dict[str, int]) -> object:
        return {name: log_in(ports[listener], first_message(token)) for name, token in tokens.items()}

    found = pair.same(scenario)
    assert isinstance(found, dict)
    assert {name: answer == REFUSED for name, answer in found.items()} == {
        name: not accepted for name, (_, accepted) in TOKENS.items()
    }
    assert found["of an RSA key"] == found["of an EC key"] == ACCEPTED


def test_names_of_claims_the_audience_and_the_lifetime_follow_the_settings(pair: Pair) -> None:
    now_s = int(time.time())
    issue = pair.server.issue
    messages = [
        first_message(token)
        for token in (
            issue(aud=None, azp="dora"),
            issue(aud=None, azp="dora", sub=7),
            issue(aud=None, azp="dora", sub=None, scope="", scp="read"),
            issue(azp="dora"),
            issue(aud=None),
            issue(aud=None, azp="dora", scp=""),
            issue(aud=None, azp="dora", exp=now_s - 1, iat=now_s - 100),
            issue(aud=None, azp="dora", exp=now_s + 61),
        )
    ]
    messages += [first_message(issue(aud=None, azp="dora")).replace(b"n,,", b"n,a=dora,")]
    messages += [first_message(issue(aud=None, azp="dora")).replace(b"n,,", b"n,a=shop,")]
    messages += [first_message(issue(aud=None, azp="dora"), {"traceId": "1"})]

    def scenario(ports: dict[str, int]) -> object:
        return [log_in(ports["ANY"], message) for message in messages]

    found = pair.same(scenario)
    assert isinstance(found, list)
    assert found[0] == [(0, "", b"", 2)], "connections.max.reauth.ms, before the token expires"


def test_reauthentication_keeps_the_principal_and_ends_with_the_token(pair: Pair) -> None:
    now_s = int(time.time())

    def scenario(ports: dict[str, int]) -> object:
        answers = []
        with RawSaslConnection(ports["SIGNED"]) as connection:
            for number, token in enumerate(
                (
                    pair.server.issue(exp=now_s + 300),
                    pair.server.issue("ec-1", exp=now_s + 200),
                    pair.server.issue(sub="other"),
                )
            ):
                if number:
                    time.sleep(1.1)
                connection.handshake("OAUTHBEARER")
                answer = connection.authenticate(first_message(token))
                minutes = round(answer.session_lifetime_ms / 60_000)
                answers.append((answer.error_code, answer.error_message, minutes))
            with pytest.raises(ConnectionClosed):
                connection.receive()
        return answers

    found = pair.same(scenario)
    assert isinstance(found, list)
    assert [code for code, _, _ in found] == [0, 0, ErrorCode.SASL_AUTHENTICATION_FAILED]
    assert "Cannot change principals" in str(found[2][1])


def test_a_new_key_is_found_at_the_second_attempt(pair: Pair) -> None:
    """Rotation: the first token of an unknown key makes the broker fetch the key set."""
    before = dict(pair.server.keys)
    pair.server.rotate("ec-2", ec.generate_private_key(ec.SECP256R1()))
    try:
        token = first_message(pair.server.issue())

        def scenario(ports: dict[str, int]) -> object:
            first = log_in(ports["SIGNED"], token)
            accepted = wait_until(lambda: log_in(ports["SIGNED"], token) == ACCEPTED, timeout_s=30)
            return first, accepted, log_in(ports["FILE"], token)

        assert pair.same(scenario) == (REFUSED, True, REFUSED)
    finally:
        pair.server.rotate("rsa-1", before["rsa-1"])
        pair.server.keys = before


def test_neither_the_answer_nor_the_log_has_a_part_of_a_token(pair: Pair) -> None:
    port, token = (
        pair.ports["Ottla"]["SIGNED"],
        pair.server.issue(secret="s3cret", iss="https://wrong.example"),
    )
    good = first_message(pair.server.issue())
    assert wait_until(lambda: log_in(port, good) == ACCEPTED, timeout_s=30), "its key is known again"
    assert log_in(port, first_message(token)) == REFUSED
    text = pair.logs["Ottla"].read_text()
    assert "it is of another issuer" in text
    assert not any(part in text for part in (*token.split("."), "s3cret", "wrong.example"))
