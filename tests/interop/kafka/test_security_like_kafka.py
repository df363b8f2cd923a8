"""Authentication by Apache Kafka 3.9.1 and by Ottla with the same settings: every result is the same."""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.apache_kafka import KafkaBroker
from ottla.local.brokers import BrokerProcess
from ottla.local.processes import free_port, wait_until
from ottla.local.zookeeper import EmbeddedZooKeeper
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ApiVersionsRequest,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ExpireDelegationTokenRequest,
    MetadataRequest,
    RenewDelegationTokenRequest,
)
from ottla.security.mechanisms import plain_token
from ottla.security.oauth import first_message, unsecured_token
from ottla.security.scram import ScramClient, salted_password
from tests.judges.secured import (
    ANNA,
    ANNAS_PASSWORD,
    JAAS,
    OAUTH_MODULE,
    SCRAM_MODULE,
    ConnectionClosed,
    Place,
    RawSaslConnection,
)
from tests.oracles import needs_kafka_jars

pytestmark = pytest.mark.timeout(420)
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "SESSIONS", "TOKENS")
SHA_256, SHA_512 = 1, 2


class Pair(NamedTuple):
    place: Place
    ports: dict[str, dict[str, int]]
    """Of each broker: listener -> port."""
    log: Path
    """Ottla's."""

    def same(self, scenario: Callable[[dict[str, int]], object]) -> object:
        """What both brokers answer, which must be the same."""
        found = {name: scenario(ports) for name, ports in self.ports.items()}
        assert found["Ottla"] == found["Apache Kafka"]
        return found["Ottla"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    needs_kafka_jars()
    directory: Path = tmp_path_factory.mktemp("security")
    place = Place(directory / "keys")
    with ExitStack() as running:
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        running.callback(zookeeper.stop)
        zookeeper.start()
        ports = {
            name: {listener: free_port() for listener in LISTENERS} for name in ("Apache Kafka", "Ottla")
        }
        more = {
            "delegation.token.secret.key": "the secret of all brokers",
            "listener.security.protocol.map": ",".join(f"{p}:{p}" for p in LISTENERS[:4])
            + ",SESSIONS:SASL_PLAINTEXT,TOKENS:SASL_PLAINTEXT",
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.tokens.oauthbearer.sasl.jaas.config": f"{OAUTH_MODULE} required "
            'unsecuredValidatorRequiredScope="read" unsecuredValidatorAllowableClockSkewMs="1000"'
            ' unsecuredLoginStringClaim_sub="b";',
            "listener.name.sessions.plain.sasl.jaas.config": JAAS,
            "listener.name.sessions.plain.connections.max.reauth.ms": "3000",
            "listener.name.sessions.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sessions.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        }
        java = KafkaBroker(
            directory / "kafka",
            f"{zookeeper.connect}/kafka",
            port=ports["Apache Kafka"]["PLAINTEXT"],
            settings=place.settings(ports["Apache Kafka"]) | more,
        )
        ours = BrokerProcess(0, directory / "ottla", ports["Ottla"]["PLAINTEXT"])
        running.callback(java.stop)
        running.callback(ours.stop)
        ours.write_properties(f"{zookeeper.connect}/ottla", place.settings(ports["Ottla"]) | more)
        ours.start_and_wait()
        java.start()
        yield Pair(place, ports, ours.directory / "broker.log")


# --- SASL -------------------------------------------------------------------------------------------------


def test_plain_accepts_the_right_password(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        answers = []
        for version in (0, 1, 2):
            with RawSaslConnection(ports["SASL_SSL"], pair.place.trusting()) as connection:
                connection.handshake("PLAIN")
                answers.append(connection.authenticate(plain_token(ANNA, ANNAS_PASSWORD), version))
                answers.append(_brokers(connection))
        return answers

    pair.same(scenario)


@pytest.mark.parametrize(
    "token",
    [
        plain_token(ANNA, "falsch"),
        plain_token("nobody", "x"),
        plain_token("", "x"),
        plain_token(ANNA, ""),
        b"bert" + plain_token(ANNA, ANNAS_PASSWORD),
        b"anna",
        b"",
        b"\0\0\0\0",
        b"\xff\xfe\0\xff\0\xff",
    ],
)
def test_plain_refuses_others_with_kafkas_message(pair: Pair, token: bytes) -> None:
    def scenario(ports: dict[str, int]) -> object:
        with RawSaslConnection(ports["SASL_PLAINTEXT"]) as connection:
            connection.handshake("PLAIN")
            answer = connection.authenticate(token)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            with pytest.raises(ConnectionClosed):
                connection.receive()
            return answer

    pair.same(scenario)


def test_mechanisms_that_are_not_enabled(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        answers = []
        for version in (0, 1):
            with RawSaslConnection(ports["SASL_PLAINTEXT"]) as connection:
                answer = connection.handshake("GSSAPI", version)
                answers.append((answer.error_code, sorted(answer.mechanisms)))
                with pytest.raises(ConnectionClosed):
                    connection.receive()
        return answers

    found = pair.same(scenario)
    mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert found == [(ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms)] * 2


def test_an_unauthenticated_client_cannot_forge_lines_of_the_log(pair: Pair) -> None:
    with RawSaslConnection(pair.ports["Ottla"]["SASL_PLAINTEXT"]) as connection:
        connection.handshake("x\r\n2026-01-01 00:00:00,000 INFO    ottla.server: forged")
    assert wait_until(lambda: "ottla.server: forged" in pair.log.read_text(), timeout_s=60)
    assert not any(line.startswith("2026-01-01") for line in pair.log.read_text().splitlines())


def test_requests_out_of_order_close_the_connection(pair: Pair) -> None:
    def gone_after(*steps: Callable[[RawSaslConnection], object]) -> Callable[[dict[str, int]], object]:
        def scenario(ports: dict[str, int]) -> object:
            with RawSaslConnection(ports["SASL_PLAINTEXT"]) as connection:
                *fine, last = steps
                for step in fine:
                    step(connection)
                with pytest.raises(ConnectionClosed):
                    last(connection)
                return True

        return scenario

    def versions(connection: RawSaslConnection) -> object:
        return connection.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)

    def metadata(connection: RawSaslConnection) -> object:
        return connection.ask(MetadataRequest(topics=[]), 5)

    def too_large(connection: RawSaslConnection) -> object:
        connection.send(b"x" * 600_000)
        return connection.receive()

    pair.same(gone_after(metadata))
    pair.same(gone_after(versions, metadata))
    pair.same(gone_after(versions, versions))
    pair.same(gone_after(too_large))
    pair.same(gone_after(lambda connection: connection.authenticate(b"x")))


def test_unframed_tokens_follow_handshake_version_0(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        with RawSaslConnection(ports["SASL_PLAINTEXT"]) as connection:
            connection.handshake("PLAIN", 0)
            connection.send(plain_token(ANNA, ANNAS_PASSWORD))
            assert connection.receive() == b""
            known = _brokers(connection)
        with RawSaslConnection(ports["SASL_PLAINTEXT"]) as connection:
            connection.handshake("PLAIN", 0)
            connection.send(plain_token(ANNA, "falsch"))
            with pytest.raises(ConnectionClosed):
                connection.receive()
        return known

    pair.same(scenario)


def test_reauthentication(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        answers: list[object] = []
        with RawSaslConnection(ports["SASL_SSL"], pair.place.trusting()) as connection:
            answers.append(connection.log_in())
            answers += [connection.handshake("PLAIN").error_code, connection.authenticate(b"x")]
        with RawSaslConnection(ports["SESSIONS"]) as connection:
            answers.append(connection.log_in())
            answers.append(connection.log_in())
        with RawSaslConnection(ports["SESSIONS"]) as connection:
            connection.log_in()
            answers.append(connection.log_in("bert", "bert"))
            with pytest.raises(ConnectionClosed):
                connection.receive()
        with RawSaslConnection(ports["SESSIONS"]) as connection:
            connection.log_in()
            answers.append(connection.handshake("SCRAM-SHA-256").error_code)
            with pytest.raises(ConnectionClosed):
                connection.authenticate(b"x")
        with RawSaslConnection(ports["PLAINTEXT"]) as connection:
            answers.append(connection.handshake("PLAIN").error_code)
            answers.append(connection.authenticate(b"x"))
        return answers

    pair.same(scenario)


def test_an_expired_session_is_closed_at_the_next_request(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        with RawSaslConnection(ports["SESSIONS"]) as connection:
            lifetime_ms = connection.log_in().session_lifetime_ms

            def over() -> bool:
                try:
                    _brokers(connection)
                except ConnectionClosed:
                    return True
                return False

            assert wait_until(over, timeout_s=60)
            return lifetime_ms

    assert pair.same(scenario) == 3000


# --- SCRAM ------------------------------------------------------------------------------------------------


def change(
    *upserted: tuple[str, int, int, str], deleted: tuple[tuple[str, int], ...] = ()
) -> AlterUserScramCredentialsRequest:
    """Of users: mechanism, iterations, password."""
    names = {SHA_256: "SCRAM-SHA-256", SHA_512: "SCRAM-SHA-512"}
    made = [
        AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=iterations,
            salt=b"salz",
            salted_password=salted_password(
                names.get(mechanism, "SCRAM-SHA-256"), password, b"salz", max(iterations, 1)
            ),
        )
        for name, mechanism, iterations, password in upserted
    ]
    gone = [
        AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=mechanism)
        for name, mechanism in deleted
    ]
    return AlterUserScramCredentialsRequest(deletions=gone, upsertions=made)


def results(answer: object) -> list[tuple[str, int, str | None]]:
    assert isinstance(answer, AlterUserScramCredentialsResponse)
    return sorted((r.user, r.error_code, r.error_message) for r in answer.results)


def described(connection: RawSaslConnection, *users: str) -> object:
    named = [DescribeUserScramCredentialsRequest.UserName(name=user) for user in users]
    answer = connection.ask(DescribeUserScramCredentialsRequest(users=named or None), 0)
    assert isinstance(answer, DescribeUserScramCredentialsResponse)
    infos = [
        (r.user, r.error_code, r.error_message, [(i.mechanism, i.iterations) for i in r.credential_infos])
        for r in answer.results
    ]
    return answer.error_code, answer.error_message, sorted(infos)


def test_scram_credentials_are_created_used_and_described(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        answers: list[object] = []
        with RawSaslConnection(ports["PLAINTEXT"]) as admin:
            ask = admin.ask(change(("dora,=x", SHA_256, 4096, "eins"), ("dora,=x", SHA_512, 8192, "zwei")), 0)
            answers.append(results(ask))
            answers.append(described(admin))
            for mechanism, password in (("SCRAM-SHA-256", "eins"), ("SCRAM-SHA-512", "zwei")):
                answers.append(_log_in(pair, ports, mechanism, "dora,=x", password, wanted=0))
            answers.append(_log_in(pair, ports, "SCRAM-SHA-256", "dora,=x", "zwei", wanted=58))
            answers.append(_log_in(pair, ports, "SCRAM-SHA-256", "nobody", "zwei", wanted=58))
            answers.append(results(admin.ask(change(deleted=(("dora,=x", SHA_256),)), 0)))
            answers.append(_log_in(pair, ports, "SCRAM-SHA-256", "dora,=x", "eins", wanted=58))
            answers.append(described(admin, "dora,=x", "nobody", "", "twice", "twice"))
        return answers

    pair.same(scenario)


def test_an_unknown_user_fails_at_the_same_step_as_a_wrong_password(pair: Pair) -> None:
    """Ottla alone: Apache Kafka refuses an unknown user's first message, and so reveals who exists."""
    ports = pair.ports["Ottla"]
    with RawSaslConnection(ports["PLAINTEXT"]) as admin:
        admin.ask(change(("emma", SHA_256, 4096, "eins")), 0)
    _log_in(pair, ports, "SCRAM-SHA-256", "emma", "eins", wanted=0)

    def answers(user: str) -> list[object]:
        with RawSaslConnection(ports["SASL_PLAINTEXT"]) as connection:
            connection.handshake("SCRAM-SHA-256")
            client = ScramClient("SCRAM-SHA-256", user, "zwei")
            first = connection.authenticate(client.first())
            last = connection.authenticate(client.final(bytes(first.auth_bytes)))
            return [first.error_code, len(first.auth_bytes), last.error_code, last.error_message]

    assert answers("emma") == answers("nora")


def _log_in(
    pair: Pair, ports: dict[str, int], mechanism: str, user: str, password: str, wanted: int
) -> object:
    """Once the broker has heard of the credentials as they are."""
    answers: list[object] = []

    def as_wanted() -> bool:
        with RawSaslConnection(ports["SASL_SSL"], pair.place.trusting()) as connection:
            answer = connection.log_in_by_scram(mechanism, user, password)
            answers[:] = [answer.error_code, answer.error_message]
            return answer.error_code == wanted

    assert wait_until(as_wanted, timeout_s=60), answers
    return answers


def test_invalid_scram_credentials_are_refused(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        with RawSaslConnection(ports["PLAINTEXT"]) as admin:
            return [
                results(admin.ask(request, 0))
                for request in (
                    change(("", SHA_256, 4096, "x")),
                    change(("a", 0, 4096, "x"), ("b", 3, 4096, "x")),
                    change(("a", SHA_256, 4095, "x"), ("b", SHA_256, 16385, "x")),
                    change(("a", SHA_256, 4096, "x"), ("a", SHA_256, 4097, "x")),
                    change(("a", SHA_256, 4096, "x"), deleted=(("a", SHA_256),)),
                    change(("a", SHA_256, 1, "x"), deleted=(("a", 7),)),
                    change(deleted=(("a", SHA_256), ("", SHA_512), ("b", 9))),
                    change(),
                )
            ]

    pair.same(scenario)


# --- delegation tokens ------------------------------------------------------------------------------------

DAY_MS = 24 * 3600 * 1000


def create(*renewers: tuple[str, str], max_ms: int = -1, owner: str = "") -> CreateDelegationTokenRequest:
    row = CreateDelegationTokenRequest.CreatableRenewers
    return CreateDelegationTokenRequest(
        owner_principal_type="User" if owner else "",
        owner_principal_name=owner,
        renewers=[row(principal_type=kind, principal_name=name) for kind, name in renewers],
        max_lifetime_ms=max_ms,
    )


def created(answer: object) -> CreateDelegationTokenResponse:
    assert isinstance(answer, CreateDelegationTokenResponse)
    return answer


def summary(answer: object) -> object:
    """What two brokers that make tokens of their own answer alike."""
    made = created(answer)
    names = (made.principal_type, made.principal_name, made.token_requester_principal_name)
    lives = (
        made.max_timestamp_ms - made.issue_timestamp_ms,
        made.expiry_timestamp_ms - made.issue_timestamp_ms,
    )
    return made.error_code, names, lives, len(made.token_id), len(made.hmac)


def changed(answer: object, now_ms: int) -> object:
    """The error, and by how many hours the token lives on."""
    expiry_ms: int = getattr(answer, "expiry_timestamp_ms")  # noqa: B009
    return answer.error_code, round((expiry_ms - now_ms) / 3_600_000) if expiry_ms > 0 else expiry_ms


def tokens_of(answer: object) -> object:
    assert isinstance(answer, DescribeDelegationTokenResponse)
    return answer.error_code, sorted(
        (t.principal_name, t.token_requester_principal_name, tuple(r.principal_name for r in t.renewers))
        for t in answer.tokens
    )


def asked_for(*owners: str, everybody: bool = False) -> DescribeDelegationTokenRequest:
    row = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    named = [row(principal_type="User", principal_name=name) for name in owners]
    return DescribeDelegationTokenRequest(owners=None if everybody else named)


def test_delegation_tokens_are_created_described_renewed_and_expired(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        answers: list[object] = []
        with RawSaslConnection(ports["SASL_SSL"], pair.place.trusting()) as connection:
            connection.log_in()
            token = created(connection.ask(create(("User", "bert")), 3))
            now_ms = token.issue_timestamp_ms
            answers += [summary(token), summary(connection.ask(create(max_ms=3_600_000), 1))]
            answers.append(summary(connection.ask(create(owner="carl"), 3)))
            answers.append(summary(connection.ask(create(("Group", "g")), 3)))
            code = bytes(token.hmac)
            for period_ms in (-1, 3 * DAY_MS, 100 * DAY_MS):
                renewed = connection.ask(RenewDelegationTokenRequest(hmac=code, renew_period_ms=period_ms), 2)
                answers.append(changed(renewed, now_ms))
            ended = connection.ask(ExpireDelegationTokenRequest(hmac=code, expiry_time_period_ms=DAY_MS), 2)
            answers.append(changed(ended, now_ms))
            answers.append(
                changed(connection.ask(RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1), 2), now_ms)
            )
            everybody = asked_for(everybody=True)
            answers += [
                tokens_of(connection.ask(asked, 3)) for asked in (everybody, asked_for(), asked_for("bert"))
            ]
            password = base64.b64encode(code).decode()
            with RawSaslConnection(ports["SASL_SSL"], pair.place.trusting()) as other:
                shown = other.log_in_by_scram("SCRAM-SHA-256", token.token_id, password, by_token=True)
                answers += [shown.error_code, round(shown.session_lifetime_ms / DAY_MS)]
                answers += [summary(other.ask(create(), 2)), tokens_of(other.ask(everybody, 3))]
            with RawSaslConnection(ports["SASL_PLAINTEXT"]) as other:
                shown = other.log_in_by_scram("SCRAM-SHA-512", token.token_id, "falsch", by_token=True)
                answers.append((shown.error_code, shown.error_message))
            with RawSaslConnection(ports["SASL_PLAINTEXT"]) as other:
                other.log_in("bert", "bert")
                renewed = other.ask(RenewDelegationTokenRequest(hmac=code, renew_period_ms=DAY_MS), 1)
                answers.append(changed(renewed, now_ms))
                not_his = created(connection.ask(create(), 3))
                renewed = other.ask(
                    RenewDelegationTokenRequest(hmac=bytes(not_his.hmac), renew_period_ms=1), 1
                )
                answers.append(changed(renewed, now_ms))
            ended = connection.ask(ExpireDelegationTokenRequest(hmac=code, expiry_time_period_ms=-1), 2)
            answers.append(changed(ended, now_ms))
            answers.append(tokens_of(connection.ask(asked_for("bert"), 3)))
        with RawSaslConnection(ports["PLAINTEXT"]) as connection:
            answers += [summary(connection.ask(create(), 3)), tokens_of(connection.ask(everybody, 3))]
            answers.append(changed(connection.ask(ExpireDelegationTokenRequest(hmac=code), 2), now_ms))
        return answers

    pair.same(scenario)


# --- OAUTHBEARER ------------------------------------------------------------------------------------------


def test_unsecured_tokens_of_oauth(pair: Pair) -> None:
    now_s = time.time()
    good = {"sub": "dora", "iat": now_s - 60, "exp": now_s + 7200, "scope": ["write", "read"]}
    first = first_message
    messages = [
        first(unsecured_token(claims))
        for claims in (
            good,
            {**good, "scope": "read"},
            {**good, "scope": "write read"},
            {**good, "scope": "write"},
            {**good, "exp": now_s - 3600},
            {**good, "iat": now_s + 3600},
            {**good, "exp": "tomorrow"},
            {**good, "sub": 7},
            {"sub": "dora", "scope": "read"},
        )
    ]
    token = unsecured_token(good)
    messages += [
        first(token).replace(b"n,,", b"n,a=dora,"),
        first(token).replace(b"n,,", b"n,a=emil,"),
        first(token).replace(b"Bearer", b"bEARER"),
        first(token)[:-1] + b"key=value\x01\x01",
        first("a.b.c"),
        first(token + "c2lnbmVk"),
        b"",
        b"\x01",
        b"n,,\x01\x01",
    ]

    def scenario(ports: dict[str, int]) -> object:
        answers: list[object] = []
        for message in messages:
            with RawSaslConnection(ports["TOKENS"]) as connection:
                connection.handshake("OAUTHBEARER")
                try:
                    answer = connection.authenticate(message)
                except ConnectionClosed:
                    answers.append("gone")
                    continue
                hours = round(answer.session_lifetime_ms / 3_600_000)
                answers.append((answer.error_code, answer.error_message, bytes(answer.auth_bytes), hours))
                if answer.error_code == 0 and answer.auth_bytes:
                    answers.append(connection.authenticate(b"\x01"))
        return answers

    found = pair.same(scenario)
    assert isinstance(found, list)
    assert found[0] == (0, "", b"", 2)


NESTED = "[" * 100_000
NINES = "9" * 10_000


@pytest.mark.parametrize(
    "claims",
    [
        NESTED,
        '{"sub":"dora","scope":"read","exp":NaN}',
        '{"sub":"dora","scope":"read","exp":Infinity}',
        '{"sub":"dora","scope":"read","exp":-1e999}',
        f'{{"sub":"dora","scope":"read","exp":{NINES}}}',
        f'{{"sub":"dora","scope":"read","iat":{NINES},"exp":9000000000}}',
    ],
)
def test_a_token_that_cannot_be_read_is_answered(pair: Pair, claims: str) -> None:
    parts = (
        base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in ('{"alg":"none"}', claims)
    )
    message = first_message(".".join((*parts, "")))

    def scenario(ports: dict[str, int]) -> object:
        with RawSaslConnection(ports["TOKENS"]) as connection:
            connection.handshake("OAUTHBEARER")
            first = connection.authenticate(message)
            last = connection.authenticate(b"\x01")
            with pytest.raises(ConnectionClosed):
                connection.receive()
            return first.error_code, bytes(first.auth_bytes), last.error_code, last.error_message

    found = pair.same(scenario)
    assert isinstance(found, tuple)
    assert found[2] == ErrorCode.SASL_AUTHENTICATION_FAILED


# --- TLS --------------------------------------------------------------------------------------------------


def test_tls_requires_a_client_certificate(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        with RawSaslConnection(ports["SSL"], pair.place.trusting(certificate=True)) as connection:
            known = _brokers(connection)
        with (
            pytest.raises((ConnectionClosed, ssl.SSLError)),
            RawSaslConnection(ports["SSL"], pair.place.trusting()) as connection,
        ):
            _brokers(connection)
        return known

    pair.same(scenario)


def test_plaintext_on_a_tls_port_is_refused(pair: Pair) -> None:
    def scenario(ports: dict[str, int]) -> object:
        with RawSaslConnection(ports["SSL"]) as connection:
            try:
                return connection.ask(MetadataRequest(topics=[]), 5)
            except (ConnectionClosed, OSError, MemoryError):
                return "gone"

    assert pair.same(scenario) == "gone"


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
def test_versions_of_tls(pair: Pair) -> None:
    def version(ports: dict[str, int], most: ssl.TLSVersion, least: ssl.TLSVersion) -> object:
        context = pair.place.trusting()
        context.minimum_version, context.maximum_version = least, most
        try:
            with (
                socket.create_connection(("127.0.0.1", ports["SASL_SSL"]), timeout=60) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
            ):
                return sock.version()
        except (ssl.SSLError, OSError):
            return None

    v1_1, v1_2, v1_3 = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    assert pair.same(lambda ports: version(ports, v1_3, v1_2)) == "TLSv1.3"
    assert pair.same(lambda ports: version(ports, v1_2, v1_2)) == "TLSv1.2"
    assert pair.same(lambda ports: version(ports, v1_1, v1_1)) is None


def _brokers(connection: RawSaslConnection) -> int:
    """Whether the broker answers: how many brokers there are."""
    answer = connection.ask(MetadataRequest(topics=[]), 5)
    count: int = len(getattr(answer, "brokers"))  # noqa: B009 (of the answer's class)
    return count
