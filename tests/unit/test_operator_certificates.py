"""Renewal of certificates, and TLS handshakes with the issued ones.

The oracle for issued certificates is OpenSSL, through Python's ssl.
"""

from __future__ import annotations

import os
import random
import ssl
import time
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12 as p12

from ottla.security.distinguished_names import subject_of
from ottla.security.tls import TlsSettings, client_context, server_context
from ottla_operator.planning.certificates import (
    Lifetime,
    Pair,
    Subject,
    authority_reason,
    certificates_in,
    issue,
    new_authority,
    pkcs12,
    pkcs12_truststore,
    renewal_reason,
    still_trusted,
)

DAY_MS = 86_400_000
NOW_MS = time.time_ns() // 1_000_000 - 10 * DAY_MS  # OpenSSL looks at the clock by itself
LIFETIME = Lifetime(validity_days=365, renewal_days=30)
AUTHORITY = new_authority("demo-cluster-ca", LIFETIME, NOW_MS, os.urandom)
RENEWED = new_authority("demo-cluster-ca", LIFETIME, NOW_MS + 5 * DAY_MS, os.urandom, AUTHORITY.key)
OTHER_AUTHORITY = new_authority("demo-cluster-ca", LIFETIME, NOW_MS, os.urandom)
BROKER = Subject("demo-brokers", "ottla.dev", ("localhost", "10.1.2.3"))
ISSUED = issue(AUTHORITY, BROKER, LIFETIME, NOW_MS, os.urandom)


def handshake(server: Pair, client: Pair, trusted: bytes, name: str = "localhost") -> bytes:
    """The client's certificate as the server receives it, DER. Raises ssl.SSLError."""

    def settings(pair: Pair) -> TlsSettings:
        return TlsSettings.of(
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.key": pair.key.decode(),
                "ssl.keystore.certificate.chain": pair.certificate.decode(),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": trusted.decode(),
                "ssl.client.auth": "required",
            }.get
        )

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    contexts = server_context(settings(server)), client_context(settings(client))
    for context in contexts:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    here = contexts[0].wrap_bio(to_server, to_client, server_side=True)
    there = contexts[1].wrap_bio(to_client, to_server, server_hostname=name)
    for side in (there, here, there, here):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    seen = here.getpeercert(binary_form=True)
    assert seen is not None
    return seen


@pytest.mark.parametrize("trusted", [AUTHORITY.certificate, RENEWED.certificate])
def test_a_certificate_is_valid_under_the_old_and_the_renewed_certificate_of_its_authority(
    trusted: bytes,
) -> None:
    later = issue(RENEWED, Subject("alice"), LIFETIME, NOW_MS, os.urandom)
    assert subject_of(handshake(ISSUED, later, trusted)) == "CN=alice"
    renewed = issue(RENEWED, BROKER, LIFETIME, NOW_MS, os.urandom)
    assert subject_of(handshake(renewed, ISSUED, trusted)) == "CN=demo-brokers,O=ottla.dev"


@pytest.mark.parametrize("name", ["localhost", "10.1.2.3"])
def test_a_broker_certificate_is_valid_for_all_its_names(name: str) -> None:
    assert handshake(ISSUED, ISSUED, AUTHORITY.certificate, name)


def test_certificates_of_other_authorities_and_for_other_names_are_rejected() -> None:
    foreign = issue(OTHER_AUTHORITY, Subject("alice"), LIFETIME, NOW_MS, os.urandom)
    with pytest.raises(ssl.SSLError):
        handshake(ISSUED, foreign, AUTHORITY.certificate)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(ISSUED, ISSUED, AUTHORITY.certificate, "elsewhere")


def test_the_principal_is_the_one_that_brokers_map_the_certificate_to() -> None:
    for subject in (BROKER, Subject("alice")):
        der = ssl.PEM_cert_to_DER_cert(
            issue(AUTHORITY, subject, LIFETIME, NOW_MS, os.urandom).certificate.decode()
        )
        assert f"User:{subject_of(der)}" == subject.principal


@pytest.mark.parametrize(
    ("pair", "subject", "days", "reason"),
    [
        (ISSUED, BROKER, 0, ""),
        (ISSUED, BROKER, 334, ""),
        (ISSUED, BROKER, 335, "it expires on "),
        (ISSUED, BROKER, 400, "it expires on "),
        (ISSUED, replace(BROKER, names=("localhost",)), 0, ""),
        (ISSUED, replace(BROKER, names=("localhost", "b")), 0, "it lacks the name b"),
        (ISSUED, replace(BROKER, names=("10.9.9.9",)), 0, "it lacks the name 10.9.9.9"),
        (ISSUED, Subject("demo-brokers"), 0, "its subject differs"),
        (
            issue(OTHER_AUTHORITY, BROKER, LIFETIME, NOW_MS, os.urandom),
            BROKER,
            0,
            "another authority issued it",
        ),
        (None, BROKER, 0, "it is missing"),
        (Pair(AUTHORITY.key, ISSUED.certificate), BROKER, 0, "its key does not match"),
        (Pair(b"", b"nothing"), BROKER, 0, "it cannot be read"),
        (Pair(ISSUED.key, b""), BROKER, 0, "it cannot be read"),
    ],
)
def test_a_certificate_is_renewed_for_each_of_these_reasons(
    pair: Pair | None, subject: Subject, days: int, reason: str
) -> None:
    now_ms = NOW_MS + days * DAY_MS
    found = renewal_reason(pair, AUTHORITY.certificate, subject, LIFETIME, now_ms)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_a_renewed_authority_does_not_require_new_certificates() -> None:
    assert renewal_reason(ISSUED, RENEWED.certificate, BROKER, LIFETIME, NOW_MS) == ""


@pytest.mark.parametrize(
    ("pair", "days", "reason"),
    [
        (AUTHORITY, 334, ""),
        (AUTHORITY, 335, "it expires on "),
        (RENEWED, 335, ""),
        (None, 0, "it is missing"),
        (Pair(ISSUED.key, AUTHORITY.certificate), 0, "its key does not match"),
        (Pair(b"x", AUTHORITY.certificate), 0, "it cannot be read"),
    ],
)
def test_an_authority_is_renewed_for_each_of_these_reasons(pair: Pair | None, days: int, reason: str) -> None:
    found = authority_reason(pair, LIFETIME, NOW_MS + days * DAY_MS)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_a_certificate_expires_with_its_authority_at_the_latest() -> None:
    late = issue(AUTHORITY, BROKER, LIFETIME, NOW_MS + 300 * DAY_MS, os.urandom)
    ends = [x509.load_pem_x509_certificate(pem).not_valid_after_utc for pem in (late[1], AUTHORITY[1])]
    assert ends[0] == ends[1]


def test_an_authority_with_a_new_key_keeps_the_old_one_trusted_until_it_expires() -> None:
    bundle = AUTHORITY.certificate + b"noise" + OTHER_AUTHORITY.certificate
    assert certificates_in(bundle) == [AUTHORITY.certificate, OTHER_AUTHORITY.certificate]
    assert still_trusted(RENEWED.certificate, bundle, NOW_MS) == OTHER_AUTHORITY.certificate
    assert still_trusted(RENEWED.certificate, bundle, NOW_MS + 366 * DAY_MS) == b""


def test_java_stores_open_only_with_their_password() -> None:
    store = p12.load_pkcs12(pkcs12(ISSUED, AUTHORITY.certificate, "secret"), b"secret")
    assert store.cert is not None
    assert store.cert.certificate == x509.load_pem_x509_certificate(ISSUED.certificate)
    trusted = p12.load_pkcs12(
        pkcs12_truststore(AUTHORITY.certificate + OTHER_AUTHORITY.certificate, "secret"), b"secret"
    )
    assert len(trusted.additional_certs) == 2
    with pytest.raises(ValueError, match="password"):
        p12.load_pkcs12(pkcs12(ISSUED, AUTHORITY.certificate, "secret"), b"other")


def test_a_pem_file_with_key_and_certificate_is_split_again() -> None:
    assert Pair.of_pem(ISSUED.pem) == ISSUED


def test_the_same_random_bytes_give_the_same_keys_and_certificates() -> None:
    def issued(seed: int) -> Pair:
        random_bytes = random.Random(seed).randbytes
        authority = new_authority("demo-cluster-ca", LIFETIME, NOW_MS, random_bytes)
        return issue(authority, BROKER, LIFETIME, NOW_MS, random_bytes)

    assert issued(1) == issued(1)
    assert issued(1).key != issued(2).key
