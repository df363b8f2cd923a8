"""Certificates: which are due for another, and issuing them; for brokers, the operator and users.

Called by `planning.cluster_secrets` and by what issues users' certificates, on every platform. What is due
is a function of the PEM files that are there, of what is wanted and of the time; issuing draws keys, and
nothing else. An authority that is renewed keeps its key, as Strimzi's does: what was signed under either of
its certificates holds by the other one too, so that nobody needs the new one before the old one ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12 as p12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Clocks of others may be late.
_BACKDATED: Final = timedelta(minutes=5)
# Files in pods are brought up to date within two minutes.
_SPREAD: Final = timedelta(minutes=5)
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Pair(NamedTuple):
    """A private key and its certificate, in PEM."""

    key: bytes
    certificate: bytes

    @property
    def pem(self) -> bytes:
        """Both, as Kafka's key stores of type PEM have them in one file."""
        return self.key + self.certificate

    @classmethod
    def of_pem(cls, pem: bytes) -> Pair:
        key, begin, rest = pem.partition(b"-----BEGIN CERTIFICATE-----")
        return cls(key, begin + rest)


@dataclass(frozen=True, slots=True)
class Lifetime:
    validity_days: int = 365
    renewal_days: int = 30


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is for, and under which names and addresses it is reached."""

    common_name: str
    organization: str = ""
    names: tuple[str, ...] = ()

    @property
    def principal(self) -> str:
        """As Kafka has it by default."""
        return f"User:{self.distinguished_name}"

    @property
    def distinguished_name(self) -> str:
        """As Kafka and ZooKeeper write it."""
        return f"CN={self.common_name}" + (f",O={self.organization}" if self.organization else "")


# ---- what is due


def authority_reason(pair: Pair | None, lifetime: Lifetime, now_ms: int) -> str:
    """Why an authority's certificate is to be made anew, or ""."""
    if pair is None:
        return "it is missing"
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = _private(pair.key)
    except _UNREADABLE:
        return "it cannot be read"
    if certificate.public_key() != key.public_key():
        return "its key is another one"
    return _ending(certificate, lifetime, now_ms)


def renewal_reason(
    pair: Pair | None, authority_certificate: bytes, subject: Subject, lifetime: Lifetime, now_ms: int
) -> str:
    """Why a certificate is to be issued anew, or "". Names that it has beside those wanted do no harm."""
    if pair is None:
        return "it is missing"
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        if certificate.public_key() != _private(pair.key).public_key():
            return "its key is another one"
    except _UNREADABLE:
        return "it cannot be read"
    if not is_issued_by(pair.certificate, authority_certificate):
        return "it is not of this authority"
    if certificate.subject != _name(subject.common_name, subject.organization):
        return "its subject is another one"
    missing = sorted({str(name.value) for name in _general_names(subject.names)} - _names_in(certificate))
    if missing:
        return f"it lacks the name {missing[0]}"
    return _ending(certificate, lifetime, now_ms)


def is_issued_by(certificate: bytes, authority_certificate: bytes) -> bool:
    try:
        issuer = x509.load_pem_x509_certificate(authority_certificate)
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(issuer)
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def _ending(certificate: x509.Certificate, lifetime: Lifetime, now_ms: int) -> str:
    end = certificate.not_valid_after_utc
    near = end - _time(now_ms) <= timedelta(days=lifetime.renewal_days)
    return f"it ends on {end:%Y-%m-%d}" if near else ""


def end_ms(pem: bytes) -> int | None:
    """When the first certificate in the file ends; None where there is none."""
    try:
        return int(x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp() * 1000)
    except _UNREADABLE:
        return None


def _names_in(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in found}


def certificates_in(pem: bytes) -> list[bytes]:
    """Each certificate of a file, the first one first."""
    return _CERTIFICATE.findall(pem)


def trusted_besides(new: bytes, old: bytes, now_ms: int) -> bytes:
    """Of the certificates in `old` those of other keys than `new` has; they are trusted to their end."""
    key = x509.load_pem_x509_certificate(new).public_key()
    kept = []
    for pem in certificates_in(old):
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            if certificate.public_key() != key and certificate.not_valid_after_utc > _time(now_ms):
                kept.append(pem)
        except _UNREADABLE:
            continue
    return b"".join(kept)


def without_earlier(bundle: bytes) -> bytes:
    """Without the certificates that an authority has had for earlier keys: of the same name as its newest."""
    newest, *older = certificates_in(bundle)
    name = x509.load_pem_x509_certificate(newest).subject
    others = (pem for pem in older if x509.load_pem_x509_certificate(pem).subject != name)
    return b"".join((newest, *others))


def is_new(certificate: bytes, now_ms: int) -> bool:
    """Whether it was issued so short a time ago that not everybody need have it."""
    begin = x509.load_pem_x509_certificate(certificate).not_valid_before_utc + _BACKDATED
    return _time(now_ms) - begin < _SPREAD


# ---- issuing


def new_authority(common_name: str, lifetime: Lifetime, now_ms: int, key: bytes | None = None) -> Pair:
    """`key`: of the authority whose certificate is renewed; a new one where there is none, or none of use."""
    private = _private_or_new(key)
    name = _name(common_name, "")
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(private.public_key())
    certificate = (
        _builder(name, name, private, _time(now_ms) + timedelta(days=lifetime.validity_days), now_ms)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(signed_by, critical=False)
        .sign(private, hashes.SHA256())
    )
    return _pair(private, certificate)


def issue(authority: Pair, subject: Subject, lifetime: Lifetime, now_ms: int) -> Pair:
    """A new key with its certificate, for servers and clients; it ends with its authority at the latest."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signing = _private(authority.key)
    private = ec.generate_private_key(ec.SECP256R1())
    end = min(issuer.not_valid_after_utc, _time(now_ms) + timedelta(days=lifetime.validity_days))
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = (
        _builder(_name(subject.common_name, subject.organization), issuer.subject, private, end, now_ms)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(signed_by, critical=False)
    )
    if subject.names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(_general_names(subject.names)), critical=False
        )
    return _pair(private, builder.sign(signing, hashes.SHA256()))


def pkcs12(pair: Pair, authority_certificate: bytes, password: str) -> bytes:
    """A key store as Java reads it, with the authority's certificate beside the own one."""
    key = _private(pair.key)
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    authority = [x509.load_pem_x509_certificate(authority_certificate)]
    locked = serialization.BestAvailableEncryption(password.encode())
    return p12.serialize_key_and_certificates(b"user", key, certificate, authority, locked)


def pkcs12_truststore(certificates: bytes, password: str) -> bytes:
    """A trust store as Java reads it, of all certificates in the PEM file."""
    entries = [
        p12.PKCS12Certificate(x509.load_pem_x509_certificate(pem), f"ca-{n}".encode())
        for n, pem in enumerate(certificates_in(certificates))
    ]
    return p12.serialize_java_truststore(entries, serialization.BestAvailableEncryption(password.encode()))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    private: PrivateKey,
    end: datetime,
    now_ms: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_ms) - _BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(private: PrivateKey, certificate: x509.Certificate) -> Pair:
    key = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(key, certificate.public_bytes(serialization.Encoding.PEM))


def _private(pem: bytes) -> PrivateKey:
    """Raises ValueError, TypeError."""
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, PrivateKey):
        raise TypeError("neither a key of an elliptic curve nor one of RSA")
    return key


def _private_or_new(pem: bytes | None) -> PrivateKey:
    try:
        return _private(pem or b"")
    except _UNREADABLE:
        return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str, organization: str) -> x509.Name:
    """The organization first: a distinguished name is written from its end."""
    attributes = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name)]
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes if value])


def _general_names(names: Sequence[str]) -> list[x509.DNSName | x509.IPAddress]:
    return [_general_name(name) for name in names]


def _general_name(name: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _time(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms // 1000, UTC)
