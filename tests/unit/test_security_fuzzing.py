"""Any bytes of an unauthenticated client get a response or close the connection; no exception escapes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.metadata.scram_credentials import ScramCredentials
from ottla.protocol import codec, frames
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from ottla.security import scram
from ottla.security.mechanisms import PlainServer, SaslFailed, SaslServer
from ottla.security.oauth import OAuthServer, UnsecuredRules, first_message
from ottla.security.principals import USER, Principal
from ottla.security.scram import ScramClient, ScramServer
from ottla.security.signed_tokens import PublicKey, SignedRules
from ottla.server.network.authenticator import Authenticator, Mechanism, SaslRules
from tests.unit.test_server_authenticator import FakeConnection

NOW = 1_700_000_000_000
CREDENTIALS = {name: scram.new_credential(name, "geheim") for name in scram.MECHANISMS}
DECOYS = ScramCredentials(Random(1))
SIGNED = SignedRules((), None, 0, "scope", "sub")
NO_KEY = PublicKey("one", "RSA", "", "", "no key")

STARTS: dict[str, Callable[[], SaslServer]] = {
    "PLAIN": lambda: PlainServer({"anna": "geheim"}),
    "OAUTHBEARER": lambda: OAuthServer(UnsecuredRules.of({}).validate, lambda reason: None),
    "signed": lambda: OAuthServer(
        lambda token, now_ms: SIGNED.validate(token, lambda key_id, algorithm: NO_KEY, now_ms),
        lambda reason: None,
    ),
    **{
        name: lambda name=name: ScramServer(  # type: ignore[misc]
            name, {"anna": CREDENTIALS[name]}.get, lambda _: None, DECOYS.decoy(name)
        )
        for name in scram.MECHANISMS
    },
}

numbers = st.integers() | st.floats() | st.sampled_from([1e999, -1e999, 10**4000])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
claims = st.dictionaries(st.sampled_from(["sub", "iat", "exp", "scope", "aud", "nbf", "jti"]), values)
headers = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "b64"]), values | st.sampled_from(["none"])
)


def jwt_of(header: object, body: object) -> bytes:
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, body)
    )
    return first_message(".".join((*parts, "")))


def nested(depth: int) -> bytes:
    deep = base64.urlsafe_b64encode(b"[" * depth).decode().rstrip("=")
    return first_message(f"{deep}.{deep}.")


plain = st.lists(st.sampled_from(["anna", "geheim", ""]) | st.text()).map(
    lambda words: "\0".join(words).encode()
)
scram_first = st.tuples(st.text(), st.text()).map(lambda words: f"n,,n={words[0]},r={words[1]}".encode())
tokens = st.one_of(
    st.binary(), plain, scram_first, st.builds(jwt_of, headers, claims), st.integers(0, 200_000).map(nested)
)


@pytest.mark.parametrize("mechanism", STARTS)
@settings(max_examples=50, deadline=None)
@given(st.lists(tokens, min_size=1, max_size=3))
@example([nested(100_000)])
@example([jwt_of({"alg": "none"}, {"sub": "dora", "exp": float("inf")})])
@example([jwt_of({"alg": "none"}, {"sub": "dora", "exp": 10**4000})])
def test_a_mechanism_answers_or_fails_on_any_bytes(mechanism: str, sent: list[bytes]) -> None:
    server = STARTS[mechanism]()
    try:
        for token in sent:
            assert isinstance(server.evaluate(token, NOW), bytes)
            if server.complete:
                break
    except SaslFailed:
        assert not server.complete


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["anna", "nobody"]), st.text().map(str.encode) | st.binary(), st.binary(max_size=80))
def test_a_proof_of_any_bytes_fails(mechanism: str, user: str, final: bytes, proof: bytes) -> None:
    for proved in (False, True):
        server = STARTS[mechanism]()
        challenge = server.evaluate(ScramClient(mechanism, user, "falsch").first(), NOW)
        nonce, _, _ = challenge.partition(b",")
        last = b"c=biws," + nonce + b",p=" + base64.b64encode(proof) if proved else final
        with pytest.raises(SaslFailed):
            server.evaluate(last, NOW)
        assert not server.complete


class Broken:
    """A mechanism with a bug."""

    complete = False
    authorization_id = ""
    expires_ms = None
    by_token = False

    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        raise self._problem


def exchange(start: Callable[[], SaslServer], sent: list[bytes]) -> FakeConnection:
    """A connection that has sent its handshake and `tokens`, closed if one of them failed."""

    async def run() -> FakeConnection:
        connection = FakeConnection()
        rules = SaslRules(
            {"X": Mechanism(start, 0)},
            0,
            lambda connection, name, exchange: Principal(USER, exchange.authorization_id),
            lambda: NOW,
        )
        authenticator = Authenticator(
            rules, asyncio.get_running_loop(), lambda connection, frame: None, lambda connection: None
        )
        handshake = frames.encode_request(SaslHandshakeRequest(mechanism="X"), 1, 1, "c")
        for frame in (handshake, *sent):
            authenticator.on_frame(connection, memoryview(frame)[4:])  # type: ignore[arg-type]
        if len(connection.answers) <= len(sent):  # the last answer comes after a delay, with the end
            async with asyncio.timeout(60):
                await connection.gone.wait()
        return connection

    return asyncio.run(run())


@pytest.mark.parametrize("problem", [OverflowError("x"), RecursionError("x"), KeyError("x")])
def test_a_mechanism_with_a_bug_answers_sasl_authentication_failed(problem: Exception) -> None:
    request = frames.encode_request(SaslAuthenticateRequest(auth_bytes=b"x"), 2, 1, "c")
    connection = exchange(lambda: Broken(problem), [request])
    answer = memoryview(connection.answers[-1])[4:]
    offset = frames.response_body_offset(SaslAuthenticateRequest.api_key, 2, answer)
    found = codec.decode(SaslAuthenticateResponse, 2, answer, offset)
    assert found.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert found.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism X"
    )
    assert connection.closed


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=4), st.sampled_from(list(STARTS)))
def test_frames_of_any_bytes_raise_nothing(sent: list[bytes], mechanism: str) -> None:
    exchange(STARTS[mechanism], [bytes(4) + frame for frame in sent])
