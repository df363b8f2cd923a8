"""OAUTHBEARER accepts tokens that a key of the key set has signed, and no others; key sets are refreshed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ottla.metadata.config import BrokerConfig
from ottla.metadata.memory import MemoryStore
from ottla.ports.workers import Threads
from ottla.security.oauth import BearerToken, TokenRefused, unsecured_token
from ottla.security.signed_tokens import SignedRules, parse_key_set, select_key
from ottla.server.assembly.broker import Broker, StartupError, new_event_loop
from ottla.server.network.key_sets import Refreshes, RefreshingKeySet

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
P384, ED = ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()
RSA, RSA_2 = (rsa.generate_private_key(65537, 2048) for _ in range(2))
ISSUED, ENDS = 1_000_000_000, 9_000_000_000
NOW_MS = ISSUED * 1000 + 60_000
CLAIMS = {"sub": "dora", "iss": "us", "aud": ["kafka"], "iat": ISSUED, "exp": ENDS}
RULES = SignedRules(("kafka", "brokers"), "us", 30, "scope", "sub")
NESTED = "[" * 100_000


def jwk(key: Key, kid: str | None = "one", **more: str) -> dict[str, str]:
    """The entry of a key set."""
    algorithm = {
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    kind = next(algorithm[kind] for kind in algorithm if isinstance(key, kind))
    named = {} if kid is None else {"kid": kid}
    return {**json.loads(cast(Any, kind).to_jwk(key.public_key())), **named, **more}


def key_set(*entries: object) -> bytes:
    return json.dumps({"keys": entries}).encode()


KEYS = parse_key_set(key_set(jwk(KEY, "one", alg="ES256"), jwk(OTHER, "two")))


def signed(key: Key = KEY, kid: str | None = "one", alg: str = "ES256", **changes: object) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return jwt.encode(claims, cast(Any, key), algorithm=alg, headers={"kid": kid} if kid else None)


def validate(token: str, rules: SignedRules = RULES, keys: Any = KEYS, now_ms: int = NOW_MS) -> BearerToken:
    return rules.validate(token, partial(select_key, keys), now_ms)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aud": "brokers"},
        {"aud": ["other", "kafka"]},
        {"iat": ISSUED + 10_000_000},  # in the future, which Kafka allows
        {"exp": ISSUED + 31},  # within the skew
        {"nbf": ISSUED + 89},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
        {"scope": []},
        {"scope": 7},
    ],
)
def test_a_token_of_a_known_key_is_accepted(changes: dict[str, object]) -> None:
    found = validate(signed(**changes))
    assert found == BearerToken("dora", cast(int, changes.get("exp", ENDS)) * 1000)


@pytest.mark.parametrize(
    "token",
    [
        signed(OTHER),
        signed(kid="three"),
        signed(aud="other"),
        signed(aud=None),
        signed(aud=7),
        signed(aud=[["kafka"]]),
        signed(iss="them"),
        signed(iss=None),
        signed(exp=ISSUED + 30),
        signed(exp=None),
        signed(exp=str(ENDS)),
        signed(exp=True),
        signed(exp=ISSUED + 100, iat=ISSUED + 101),
        signed(exp=ISSUED + 100, nbf=ISSUED + 101),
        signed(nbf=ISSUED + 91),
        signed(iat=None),
        signed(iat=-1),
        signed(sub=None),
        signed(sub=" "),
        signed(scope=""),
        signed(scope=["read", " "]),
        signed(scope=["read", "read"]),
        signed(scope=["read", 7]),
        jwt.encode(CLAIMS, "secret" * 10, algorithm="HS256", headers={"kid": "one"}),
        unsecured_token(CLAIMS),
        "",
        "a.b",
        signed()[:-2],
    ],
)
def test_other_tokens_are_refused(token: str) -> None:
    with pytest.raises(TokenRefused):
        validate(token)


def test_without_an_expected_audience_a_token_with_one_is_refused() -> None:
    open_to_all = RULES._replace(audience=())
    assert validate(signed(aud=None), open_to_all).principal == "dora"
    with pytest.raises(TokenRefused, match=r"expected\.audience"):
        validate(signed(), open_to_all)


def test_names_of_claims_can_be_set() -> None:
    rules = RULES._replace(scope_claim="scp", sub_claim="azp")
    assert validate(signed(azp="shop", scope=""), rules).principal == "shop"
    with pytest.raises(TokenRefused, match="scp"):
        validate(signed(azp="shop", scp=""), rules)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "RS512"), (RSA, "PS384"), (KEY, "ES256"), (P384, "ES384"), (ED, "EdDSA")],
)
def test_a_key_verifies_the_algorithms_of_its_type(key: Key, algorithm: str) -> None:
    keys = parse_key_set(key_set(*(jwk(each, None) for each in (RSA, RSA_2, KEY, P384, ED))))
    assert validate(signed(key, None, algorithm), keys=keys).principal == "dora"
    of_one = parse_key_set(key_set(jwk(RSA, "one", alg="RS256")))
    with pytest.raises(TokenRefused):
        validate(signed(RSA, "one", "PS256"), keys=of_one)


def test_a_public_key_is_no_secret() -> None:
    """HMAC with the PEM of the public key as its secret, which PyJWT does not sign."""
    keys = parse_key_set(key_set(jwk(RSA), {"kty": "oct", "kid": "two", "k": "c2VjcmV0"}))
    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    for kid, secret in (("one", pem), ("two", b"secret")):
        signing = unsecured(json.dumps(CLAIMS), f'{{"alg":"HS256","kid":"{kid}"}}').rstrip(".")
        signature = base64.urlsafe_b64encode(hmac.sign(signing.encode(), secret)).rstrip(b"=").decode()
        with pytest.raises(TokenRefused, match="algorithm"):
            validate(f"{signing}.{signature}", keys=keys)


def unsecured(claims: str, header: str) -> str:
    parts = (base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode() for text in (header, claims))
    return ".".join((*parts, ""))


def jws(claims: str, header: str = '{"alg":"ES256","kid":"one"}') -> str:
    """A token of these JSON texts, signed by KEY."""
    signing = unsecured(claims, header).rstrip(".")
    signature = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256).sign(signing.encode(), KEY)
    return f"{signing}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    "token",
    [
        jws("{}", NESTED),
        jws(NESTED),
        jws("7"),
        jws('{"sub":"dora","iss":"us","aud":"kafka","iat":1000000000,"exp":1e999}'),
        jws('{"sub":"dora","iss":"us","aud":"kafka","iat":1e999,"exp":9000000000}'),
        jws('{"sub":"dora","iss":"us","aud":"kafka","iat":1000000000,"exp":NaN}'),
        jws('{"sub":"dora","iss":"us","aud":[[]],"iat":1000000000,"exp":9000000000}'),
        jws('{"sub":"dora","iss":["us"],"aud":"kafka","iat":1000000000,"exp":9000000000}'),
        jws("{}", '{"alg":["ES256"],"kid":"one"}'),
        jws("{}", '{"alg":"ES256","kid":7}'),
    ],
)
def test_a_signed_token_that_cannot_be_read_is_refused(token: str) -> None:
    with pytest.raises(TokenRefused):
        validate(token)


def test_a_token_with_critical_extensions_is_refused() -> None:
    claims = json.dumps(CLAIMS)
    assert validate(jws(claims)).principal == "dora"
    with pytest.raises(TokenRefused, match="critical"):
        validate(jws(claims, '{"alg":"ES256","kid":"one","b64":true,"crit":["b64"]}'))


def test_a_signed_time_beyond_64_bits_is_clamped() -> None:
    claims = '{"sub":"dora","iss":"us","aud":"kafka","iat":1000000000,"exp":%s}'
    assert (1 << 63) - 2000 < validate(jws(claims % ("9" * 300))).expires_ms < 1 << 63


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b'{"keys": 7}', b'{"keys": []}', b"[]", b"\xff", b'{"keys": [7]}', NESTED.encode()),
        key_set(jwk(KEY, use="enc")),
        key_set({"kty": "oct", "kid": "one", "k": "c2VjcmV0"}),
        key_set(jwk(rsa.generate_private_key(65537, 1024))),
    ],
)
def test_an_invalid_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a key set"):
        parse_key_set(data)


def test_keys_that_cannot_be_used_are_left_out() -> None:
    data = key_set({"kty": "EC", "crv": "P-1"}, jwk(OTHER, use="enc"), jwk(KEY, use="sig"))
    assert [(key.id, key.type) for key in parse_key_set(data)] == [("one", "EC")]


# --- refreshes --------------------------------------------------------------------------------------------


class FakeThreads:
    """Runs the work when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], object]] = []

    def submit(self, work: Callable[[], object], /) -> None:
        self.jobs.append(work)

    def run(self) -> int:
        """Returns the number of jobs."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()
        return len(jobs)

    async def stop(self) -> None:
        await asyncio.sleep(0)


class Refreshed:
    """A refreshing key set of a file, and its clock."""

    def __init__(self, path: Path) -> None:
        self.path, self.threads, self.now = path, FakeThreads(), 0.0
        path.write_bytes(key_set(jwk(KEY)))
        self.keys = RefreshingKeySet(
            path.as_uri(), {}, cast(Threads, self.threads), lambda: self.now, Refreshes(3600, 0.1, 10)
        )
        self.keys.fetch_first()

    def knows(self, key_id: str) -> bool:
        return self.keys.select(key_id, "ES256") is not None

    def fetches_after(self, seconds: float) -> int:
        self.now += seconds
        self.keys.tick()
        return self.threads.run()


@pytest.fixture
def refreshed(tmp_path: Path) -> Refreshed:
    return Refreshed(tmp_path / "a key set.json")


def test_a_key_set_is_fetched_again_when_a_refresh_is_due(refreshed: Refreshed) -> None:
    refreshed.path.write_bytes(key_set(jwk(OTHER, "two")))
    assert refreshed.fetches_after(3599) == 0
    assert refreshed.knows("one")
    assert refreshed.fetches_after(1) == 1
    assert not refreshed.knows("one")
    assert refreshed.knows("two")


def test_a_fetch_that_fails_keeps_the_keys_and_is_repeated_with_a_growing_pause(
    refreshed: Refreshed, caplog: pytest.LogCaptureFixture
) -> None:
    refreshed.path.unlink()
    assert refreshed.fetches_after(3600) == 1
    assert refreshed.knows("one")
    assert "the present one is kept" in caplog.text
    assert [refreshed.fetches_after(0.11) for _ in range(4)] == [1, 0, 1, 0]
    assert sum(refreshed.fetches_after(10.1) for _ in range(9)) == 9
    assert refreshed.fetches_after(9.9) == 0
    refreshed.path.write_bytes(key_set(jwk(OTHER, "two")))
    assert refreshed.fetches_after(0.2) == 1
    assert refreshed.knows("two")
    assert refreshed.fetches_after(100) == 0


def test_an_unknown_key_is_looked_for_once_a_minute(refreshed: Refreshed) -> None:
    refreshed.now = 100
    assert not refreshed.knows("two")
    assert not refreshed.knows("two"), "the fetch runs"
    assert refreshed.threads.run() == 1
    refreshed.now = 159
    assert not refreshed.knows("two")
    assert refreshed.threads.run() == 0
    refreshed.path.write_bytes(key_set(jwk(OTHER, "two")))
    refreshed.now = 160
    assert not refreshed.knows("two")
    assert refreshed.threads.run() == 1
    assert refreshed.knows("two")


def test_many_unknown_keys_cause_few_fetches(refreshed: Refreshed) -> None:
    fetches = 0
    for number in range(1000):
        refreshed.now = 100 + number / 100
        assert not refreshed.knows(f"unknown {number}")
        assert not refreshed.knows("x" * 1001)
        fetches += refreshed.threads.run()
    assert fetches == 10


@pytest.mark.parametrize("url", ["ftp://x/keys", "https:", "keys.json", "file:/nowhere/keys.json", ""])
def test_a_url_without_a_key_set_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url="):
        RefreshingKeySet(
            url, {}, cast(Threads, FakeThreads()), lambda: 0.0, Refreshes(3600, 0.1, 10)
        ).fetch_first()


# --- the broker's start -----------------------------------------------------------------------------------

OAUTH_LISTENER = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": "org.apache.kafka.common.security."
    "oauthbearer.OAuthBearerLoginModule required;",
}


async def start_beside_an_oauth_server(path: Path, status: str) -> list[bytes]:
    """Start and stop a broker whose OAuth server is in the same event loop; returns the requests to it."""
    asked: list[bytes] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
        body = key_set(jwk(KEY))
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        given = {**OAUTH_LISTENER, "listener.name.sasl_plaintext.sasl.oauthbearer.jwks.endpoint.url": url}
        config = BrokerConfig.from_properties({"broker.id": "0", "log.dirs": str(path), **given})
        broker = Broker(config, store=MemoryStore())
        await broker.start()
        await broker.stop()
    return asked


def test_a_broker_fetches_its_key_set_beside_the_event_loop(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(start_beside_an_oauth_server(tmp_path, "200 OK")) == [b"GET /keys HTTP/1.1"]


def test_a_broker_does_not_start_without_its_key_set(tmp_path: Path) -> None:
    with (
        asyncio.Runner(loop_factory=new_event_loop) as runner,
        pytest.raises(StartupError, match=r"listener SASL_PLAINTEXT: sasl\.oauthbearer\.jwks.*503"),
    ):
        runner.run(start_beside_an_oauth_server(tmp_path, "503 Unavailable"))
