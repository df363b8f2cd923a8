"""Issues certificates of brokers, the operator and users, and decides which are due for renewal.

Called by `planning.cluster_secrets` and `step_executor`, on every platform. Whether a renewal is due is a
function of the existing PEM files, the desired subject and the time; issuing is one of these and of the
random bytes that it is given. An authority keeps its key when it is renewed, as Strimzi's does: certificates
signed under its old certificate are valid under the new one and the reverse, so clients need the new
certificate only when the old one expires.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
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

# The clocks of other hosts may be behind.
_BACKDATED: Final = timedelta(minutes=5)
SPREAD: Final = timedelta(minutes=5)
"""The time after which all pods have a changed file: the kubelet updates them within two minutes."""
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm)
"""What `cryptography` raises for a key or certificate that it cannot read."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

RandomBytes = Callable[[int], bytes]
"""Returns so many bytes of a cryptographically secure generator; os.urandom, unless a test passes another."""

_PASSWORD_BYTES: Final = 24  # 32 characters
_CURVE: Final = ec.SECP256R1()
_CURVE_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_SERIAL_NUMBER_BITS_MAX: Final = 159  # RFC 5280: at most 20 bytes, positive


class Pair(NamedTuple):
    """A private key and its certificate, in PEM."""

    key: bytes
    certificate: bytes

    @property
    def pem(self) -> bytes:
        """Key and certificate in one file, as Kafka's key stores of type PEM have them."""
        return self.key + self.certificate

    @classmethod
    def of_pem(cls, pem: bytes) -> Pair:
        """The pair in a file that `pem` was written to."""
        key, begin, rest = pem.partition(b"-----BEGIN CERTIFICATE-----")
        return cls(key, begin + rest)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The validity of certificates, and how long before its end they are renewed."""

    validity_days: int = 365
    renewal_days: int = 30


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a certificate, with the host names and addresses that it is valid for."""

    common_name: str
    organization: str = ""
    names: tuple[str, ...] = ()

    @property
    def principal(self) -> str:
        """The Kafka principal of the certificate by default mapping."""
        return f"User:{self.distinguished_name}"

    @property
    def distinguished_name(self) -> str:
        """The distinguished name as Kafka and ZooKeeper write it."""
        return f"CN={self.common_name}" + (f",O={self.organization}" if self.organization else "")


# ---- renewal


def authority_reason(pair: Pair | None, lifetime: Lifetime, now_ms: int) -> str:
    """Why an authority's certificate must be renewed, or ""."""
    if pair is None:
        return "it is missing"
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        if not is_pair(pair):
            return "its key does not match"
    except UNREADABLE:
        return "it cannot be read"
    return _expiry_reason(certificate, lifetime, now_ms)


def renewal_reason(
    pair: Pair | None, authority_certificate: bytes, subject: Subject, lifetime: Lifetime, now_ms: int
) -> str:
    """Why a certificate must be issued again, or "". Additional names in it are accepted."""
    if pair is None:
        return "it is missing"
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        if not is_pair(pair):
            return "its key does not match"
    except UNREADABLE:
        return "it cannot be read"
    if not is_issued_by(pair.certificate, authority_certificate):
        return "another authority issued it"
    if certificate.subject != _name(subject.common_name, subject.organization):
        return "its subject differs"
    missing = sorted({str(name.value) for name in _general_names(subject.names)} - names_in(certificate))
    if missing:
        return f"it lacks the name {missing[0]}"
    return _expiry_reason(certificate, lifetime, now_ms)


def is_issued_by(certificate: bytes, authority_certificate: bytes) -> bool:
    """Whether the authority's key signed the certificate."""
    try:
        issuer = x509.load_pem_x509_certificate(authority_certificate)
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(issuer)
    except (*UNREADABLE, InvalidSignature):
        return False
    return True


def _expiry_reason(certificate: x509.Certificate, lifetime: Lifetime, now_ms: int) -> str:
    end = certificate.not_valid_after_utc
    near = end - time_of(now_ms) <= timedelta(days=lifetime.renewal_days)
    return f"it expires on {end:%Y-%m-%d}" if near else ""


def end_ms(pem: bytes) -> int | None:
    """When the first certificate in the file expires, milliseconds since the epoch; None: no certificate."""
    try:
        return int(x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp() * 1000)
    except UNREADABLE:
        return None


def names_in(certificate: x509.Certificate) -> set[str]:
    """The host names and addresses that the certificate is valid for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in found}


def certificates_in(pem: bytes) -> list[bytes]:
    """The certificates of a PEM file, in order."""
    return _CERTIFICATE.findall(pem)


def still_trusted(new: bytes, old: bytes, now_ms: int) -> bytes:
    """The unexpired certificates in `old` with another key than `new`; they stay trusted."""
    key = x509.load_pem_x509_certificate(new).public_key()
    kept = []
    for pem in certificates_in(old):
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            if certificate.public_key() != key and certificate.not_valid_after_utc > time_of(now_ms):
                kept.append(pem)
        except UNREADABLE:
            continue
    return b"".join(kept)


def without_former_keys(bundle: bytes) -> bytes:
    """The bundle without the certificates for the authority's former keys (those with its subject)."""
    newest, *older = certificates_in(bundle)
    name = x509.load_pem_x509_certificate(newest).subject
    others = (pem for pem in older if x509.load_pem_x509_certificate(pem).subject != name)
    return b"".join((newest, *others))


def is_recently_issued(certificate: bytes, now_ms: int) -> bool:
    """Whether the certificate was issued so recently that some pods may not have it yet."""
    begin = x509.load_pem_x509_certificate(certificate).not_valid_before_utc + _BACKDATED
    return time_of(now_ms) - begin < SPREAD


def is_pair(pair: Pair) -> bool:
    """Whether the key is that of the certificate. Raises `UNREADABLE`."""
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    return certificate.public_key() == private_key(pair.key).public_key()


def same_key(one: bytes, other: bytes) -> bool:
    """Whether two certificates are of the same key."""
    first, second = x509.load_pem_x509_certificate(one), x509.load_pem_x509_certificate(other)
    return first.public_key() == second.public_key()


# ---- issuing


def new_authority(
    common_name: str, lifetime: Lifetime, now_ms: int, random_bytes: RandomBytes, key: bytes | None = None
) -> Pair:
    """A self-signed authority. `key`: the key to keep; a missing or unreadable one is generated."""
    private = _private_or_new(key, random_bytes)
    name = _name(common_name, "")
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(private.public_key())
    end, serial_number = (
        time_of(now_ms) + timedelta(days=lifetime.validity_days),
        _serial_number(random_bytes),
    )
    builder = (
        _builder(name, name, private, end, now_ms, serial_number)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(signed_by, critical=False)
    )
    return _pair(private, _sign(builder, private))


def issue(
    authority: Pair, subject: Subject, lifetime: Lifetime, now_ms: int, random_bytes: RandomBytes
) -> Pair:
    """A new key with a certificate for servers and clients, which expires before its authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signing = private_key(authority.key)
    private = _new_private_key(random_bytes)
    end = min(issuer.not_valid_after_utc, time_of(now_ms) + timedelta(days=lifetime.validity_days))
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = (
        _builder(
            _name(subject.common_name, subject.organization),
            issuer.subject,
            private,
            end,
            now_ms,
            _serial_number(random_bytes),
        )
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
    return _pair(private, _sign(builder, signing))


def pkcs12(pair: Pair, authority_certificate: bytes, password: str) -> bytes:
    """A PKCS #12 key store for Java: key, certificate and the authority's certificate."""
    key = private_key(pair.key)
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    authority = [x509.load_pem_x509_certificate(authority_certificate)]
    locked = serialization.BestAvailableEncryption(password.encode())
    return p12.serialize_key_and_certificates(b"user", key, certificate, authority, locked)


def pkcs12_truststore(certificates: bytes, password: str) -> bytes:
    """A PKCS #12 trust store for Java with all certificates of the PEM file."""
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
    serial_number: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(private.public_key())
        .serial_number(serial_number)
        .not_valid_before(time_of(now_ms) - _BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    )


def _sign(builder: x509.CertificateBuilder, private: PrivateKey) -> x509.Certificate:
    """The signed certificate. The signature is the same for the same content and key (RFC 6979)."""
    deterministic = True if isinstance(private, ec.EllipticCurvePrivateKey) else None
    return builder.sign(private, hashes.SHA256(), ecdsa_deterministic=deterministic)


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


def private_key(pem: bytes) -> PrivateKey:
    """The key in a PEM file without a password. Raises `UNREADABLE`."""
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, PrivateKey):
        raise TypeError("the private key is neither an EC nor an RSA key")
    return key


def _private_or_new(pem: bytes | None, random_bytes: RandomBytes) -> PrivateKey:
    try:
        return private_key(pem or b"")
    except UNREADABLE:
        return _new_private_key(random_bytes)


def _new_private_key(random_bytes: RandomBytes) -> ec.EllipticCurvePrivateKey:
    """A new key of curve P-256, by the method of extra random bits (FIPS 186-5, A.2.1)."""
    number = int.from_bytes(random_bytes(40)) % (_CURVE_ORDER - 1) + 1
    return ec.derive_private_key(number, _CURVE)


def _serial_number(random_bytes: RandomBytes) -> int:
    return int.from_bytes(random_bytes(20)) >> (160 - _SERIAL_NUMBER_BITS_MAX)


def new_password(random_bytes: RandomBytes) -> str:
    """A password of 32 characters that need no quoting."""
    return base64.urlsafe_b64encode(random_bytes(_PASSWORD_BYTES)).decode()


def _name(common_name: str, organization: str) -> x509.Name:
    """The X.509 name, organization first: the string form of a distinguished name is in reverse order."""
    attributes = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name)]
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes if value])


def _general_names(names: Sequence[str]) -> list[x509.DNSName | x509.IPAddress]:
    return [_general_name(name) for name in names]


def _general_name(name: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def time_of(now_ms: int) -> datetime:
    """The time in UTC, to the second."""
    return datetime.fromtimestamp(now_ms // 1000, UTC)
