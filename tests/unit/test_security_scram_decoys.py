"""SCRAM does not reveal which users exist: an unknown user fails as a wrong password does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import pytest

from ottla.metadata.dynamic_configs import USERS
from ottla.metadata.scram_credentials import ScramCredentials
from ottla.security import scram
from ottla.security.mechanisms import SaslFailed
from ottla.security.scram import ScramClient, ScramCredential, ScramServer

NOW = 1_700_000_000_000
MECHANISM = "SCRAM-SHA-256"
CHALLENGE = re.compile(r"r=(?P<nonce>[^,]+),s=(?P<salt>[^,]+),i=(?P<iterations>\d+)")
JAVA_SALT = b"1f3q8s0v2y4b6d8f0h2k4m6n8p"


def with_salt(salt: bytes, iterations: int = 4096) -> ScramCredential:
    salted = scram.salted_password(MECHANISM, "geheim", salt, iterations)
    return scram.credential(MECHANISM, salted, salt, iterations)


def broker(users: dict[str, ScramCredential]) -> ScramCredentials:
    credentials = ScramCredentials(Random(1))
    for user, credential in users.items():
        credentials.on_entity_changed(USERS, user, {MECHANISM: credential.to_text()})
    return credentials


def server(credentials: ScramCredentials) -> ScramServer:
    return ScramServer(MECHANISM, credentials.of(MECHANISM), lambda _: None, credentials.decoy(MECHANISM))


def challenge(credentials: ScramCredentials, user: str, *, by_token: bool = False) -> tuple[str, int]:
    """Salt and iterations of the broker's first response."""
    client = ScramClient(MECHANISM, user, "falsch", by_token=by_token)
    found = CHALLENGE.fullmatch(server(credentials).evaluate(client.first(), NOW).decode())
    assert found is not None
    return found["salt"], int(found["iterations"])


def names(count: int = 200) -> Iterable[str]:
    return (f"user-{number}" for number in range(count))


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("user", ["anna", "nobody"])
def test_the_exchange_fails_at_the_proof_whether_the_user_exists_or_not(user: str, by_token: bool) -> None:
    credentials = broker({"anna": scram.new_credential(MECHANISM, "geheim")})
    client = ScramClient(MECHANISM, user, "falsch", by_token=by_token)
    exchange = server(credentials)
    proof = client.final(exchange.evaluate(client.first(), NOW))
    with pytest.raises(SaslFailed, match=r"^$"):
        exchange.evaluate(proof, NOW)
    assert not exchange.complete


@pytest.mark.parametrize("user", ["anna", "nobody"])
def test_another_authorization_id_is_refused_in_the_same_way(user: str) -> None:
    credentials = broker({"anna": scram.new_credential(MECHANISM, "geheim")})
    with pytest.raises(SaslFailed, match="authorization id that is different"):
        server(credentials).evaluate(f"n,a=bert,n={user},r=abc".encode(), NOW)


def test_a_name_has_the_same_salt_each_time_at_each_broker_and_no_other_name_has_it() -> None:
    users = {f"real-{n}": scram.new_credential(MECHANISM, "x") for n in range(3)}
    one, other = broker(users), broker(dict(reversed(users.items())))
    assert [challenge(one, name) for name in names()] == [challenge(one, name) for name in names()]
    assert [challenge(one, name) for name in names()] == [challenge(other, name) for name in names()]
    assert len({challenge(one, name)[0] for name in names()}) == 200
    tokens = {challenge(one, name, by_token=True)[0] for name in names()}
    assert len(tokens) == 200


def test_a_change_of_one_user_changes_few_decoys() -> None:
    users = {f"real-{n}": scram.new_credential(MECHANISM, "x") for n in range(20)}
    credentials = broker(users)
    before = [challenge(credentials, name) for name in names()]
    credentials.on_entity_changed(USERS, "real-7", {})
    after = [challenge(credentials, name) for name in names()]
    assert 0 <= sum(a != b for a, b in zip(before, after, strict=True)) < 60


@pytest.mark.parametrize(
    ("salt", "form"),
    [
        (scram.new_nonce().encode(), rb"[0-9a-f]{32}"),
        (JAVA_SALT, rb"[0-9a-z]{20,26}"),
        (bytes(range(64)), rb"(?s).{64}"),
    ],
    ids=["Ottla's", "Java's", "bytes"],
)
def test_a_decoys_salt_has_the_form_of_the_users_salts(salt: bytes, form: bytes) -> None:
    credentials = broker({"anna": with_salt(salt)})
    for name in names(50):
        decoy = credentials.decoy(MECHANISM)(name, False)
        assert re.fullmatch(form, decoy.salt), decoy.salt
        assert (len(decoy.stored_key), len(decoy.server_key)) == (32, 32)


def test_a_decoys_iterations_are_those_of_real_users() -> None:
    same = broker({f"real-{n}": with_salt(b"%032x" % n, 8192) for n in range(2)})
    assert {challenge(same, name)[1] for name in names()} == {8192}
    each_its_own = broker({f"real-{n}": with_salt(b"%032x" % n, 4100 + 1000 * n) for n in range(3)})
    found = {challenge(each_its_own, name)[1] for name in names()}
    assert min(found) >= 4100
    assert max(found) <= 6100
    assert len(found) > 100, "no real user's number gives a decoy away"


def test_a_broker_without_users_sends_a_challenge_too() -> None:
    credentials = broker({})
    assert challenge(credentials, "nobody") == challenge(credentials, "nobody")
