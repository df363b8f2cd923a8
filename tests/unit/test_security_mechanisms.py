"""SASL mechanisms authenticate users by their RFCs and Kafka's extensions."""

from __future__ import annotations

from random import Random

import pytest

from ottla.metadata.scram_credentials import ScramCredentials
from ottla.security import jaas, scram
from ottla.security.jaas import Login
from ottla.security.mechanisms import PlainServer, SaslFailed, plain_token, plain_users
from ottla.security.scram import Decoy, ScramClient, ScramCredential, ScramServer

NOW = 1_700_000_000_000


def no_tokens(token_id: str) -> None:
    return None


def decoys_of(mechanism: str) -> Decoy:
    return ScramCredentials(Random(1)).decoy(mechanism)


no_decoy = decoys_of("SCRAM-SHA-256")


# --- sasl.jaas.config -------------------------------------------------------------------------------------


def test_a_login_module_is_read_with_its_options() -> None:
    login = jaas.parse(
        "org.example.Login required\n  username=anna // who\n"
        '  password="a \\"b\\" ;=\'" /* how\n */ other=\'x"y\';'
    )
    assert login == Login("org.example.Login", {"username": "anna", "password": 'a "b" ;=\'', "other": 'x"y'})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "org.example.Login;",
        "org.example.Login maybe a=b;",
        "org.example.Login required a=b",
        "org.example.Login required a;",
        "org.example.Login required a=;",
        'org.example.Login required a="b;',
        "org.example.Login required; org.example.Other required;",
    ],
)
def test_an_invalid_login_module_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="JAAS"):
        jaas.parse(text)


# --- PLAIN ------------------------------------------------------------------------------------------------

USERS = plain_users({"user_anna": "geheim", "user_": "x", "username": "broker", "password": "p"})


def test_plain_accepts_the_right_password() -> None:
    server = PlainServer(USERS)
    assert server.evaluate(plain_token("anna", "geheim"), NOW) == b""
    assert server.complete
    assert server.authorization_id == "anna"


@pytest.mark.parametrize(
    ("token", "says"),
    [
        (plain_token("anna", "falsch"), "Authentication failed: Invalid username or password"),
        (plain_token("bert", "geheim"), "Authentication failed: Invalid username or password"),
        (plain_token("", "geheim"), "Authentication failed: username not specified"),
        (plain_token("anna", ""), "Authentication failed: password not specified"),
        (b"anna\0geheim", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"a\0anna\0geheim\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"bert\0anna\0geheim", "authorization id that is different from username"),
    ],
)
def test_plain_refuses_wrong_passwords(token: bytes, says: str) -> None:
    server = PlainServer(USERS)
    with pytest.raises(SaslFailed, match=says):
        server.evaluate(token, NOW)
    assert not server.complete


# --- SCRAM ------------------------------------------------------------------------------------------------

# RFC 7677, section 3.
SALT = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")
RFC = scram.credential(
    "SCRAM-SHA-256", scram.salted_password("SCRAM-SHA-256", "pencil", SALT, 4096), SALT, 4096
)
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def test_both_sides_make_the_exchange_of_the_rfc() -> None:
    server = ScramServer("SCRAM-SHA-256", {"user": RFC}.get, no_tokens, no_decoy, lambda: SERVER_NONCE)
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce=CLIENT_NONCE)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.evaluate(client.first(), NOW)
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    proof = client.final(challenge)
    assert proof.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    last = server.evaluate(proof, NOW)
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(last)
    assert server.complete
    assert server.authorization_id == "user"


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
def test_a_new_credential_accepts_its_password_only(mechanism: str) -> None:
    known = {"a=b,c": ScramCredential.of_text(scram.new_credential(mechanism, "geheim").to_text())}

    def exchange(user: str, password: str) -> ScramServer:
        server = ScramServer(mechanism, known.get, no_tokens, decoys_of(mechanism))
        client = ScramClient(mechanism, user, password)
        client.check(server.evaluate(client.final(server.evaluate(client.first(), NOW)), NOW))
        return server

    assert exchange("a=b,c", "geheim").authorization_id == "a=b,c"
    for user, password in (("a=b,c", "falsch"), ("bert", "geheim")):
        with pytest.raises(SaslFailed, match=r"^$"):  # nothing that says which of the two was wrong
            exchange(user, password)


def test_a_client_refuses_a_broker_that_does_not_know_the_password() -> None:
    server = ScramServer("SCRAM-SHA-256", {"user": RFC}.get, no_tokens, no_decoy)
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    client.final(server.evaluate(client.first(), NOW))
    for last in (b"v=AAAA", b"v=", b"e=other-error", b"\xff"):
        with pytest.raises(SaslFailed, match="not proved"):
            client.check(last)


def test_a_client_refuses_a_low_iteration_count() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="abc")
    with pytest.raises(SaslFailed, match="fewer than"):
        client.final(b"r=abcdef,s=QSXCR+Q6sek8bf92,i=1")
    with pytest.raises(SaslFailed, match="is invalid"):
        client.final(b"r=other,s=QSXCR+Q6sek8bf92,i=4096")


def test_a_delegation_token_authenticates_its_owner() -> None:
    token = scram.new_credential("SCRAM-SHA-512", "the hmac")

    def find(token_id: str) -> tuple[ScramCredential, str, int] | None:
        return (token, "anna", NOW + 5) if token_id == "id" else None

    server = ScramServer("SCRAM-SHA-512", {}.get, find, no_decoy)
    client = ScramClient("SCRAM-SHA-512", "id", "the hmac", by_token=True)
    client.check(server.evaluate(client.final(server.evaluate(client.first(), NOW)), NOW))
    assert (server.authorization_id, server.by_token, server.expires_ms) == ("anna", True, NOW + 5)


@pytest.mark.parametrize(
    "first",
    [b"", b"\xff\xfe", b"n,,n=user", b"y,,n=user,r=abc", b"n,,n=us\0er,r=abc", b"n,a=bert,n=user,r=abc"],
)
def test_an_invalid_first_message_is_refused(first: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", {"user": RFC}.get, no_tokens, no_decoy)
    with pytest.raises(SaslFailed):
        server.evaluate(first, NOW)


@pytest.mark.parametrize("text", ["", "salt=x", "salt=AA==,stored_key=AA==,server_key=AA==,iterations=many"])
def test_an_invalid_credential_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Credentials not valid"):
        ScramCredential.of_text(text)
