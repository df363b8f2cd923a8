"""Checks keys and certificates that others put into Secrets: listeners' own ones, and authorities.

Called by `planning.cluster_secrets`. What cannot be used is described, never raised: the certificate that is
in force stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Final

from cryptography import x509

from ottla_operator.conditions import Finding, no
from ottla_operator.planning.certificates import (
    UNREADABLE,
    Pair,
    certificates_in,
    names_in,
    private_key,
    time_of,
)
from ottla_operator.resources.authentication import TrustedCertificates

CONDITION: Final = "CertificatesValid"
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with a certificate: `reason` is CamelCase, `message` says where."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Given:
    """A key with its certificates, and what is wrong with it. `pair` is None when it cannot be used."""

    pair: Pair | None
    flaw: Flaw | None = None


def given_pair(
    what: str, data: Mapping[str, bytes] | None, entries: tuple[str, str], renewal_days: int, now_ms: int
) -> Given:
    """The pair in a Secret. `what`: names the user and the Secret; `entries`: of the certificate and the
    key; `data`: None when there is no such Secret."""
    if data is None:
        return _refused("SecretNotFound", f"{what} does not exist")
    for entry in entries:
        if not data.get(entry):
            return _refused("InvalidSecret", f"{what} has no entry {entry}")
    chain, key = data[entries[0]], data[entries[1]]
    try:
        certificates = [x509.load_pem_x509_certificate(pem) for pem in certificates_in(chain)]
        if not certificates:
            return _refused("InvalidCertificate", f"{what}, entry {entries[0]}: there is no certificate")
    except UNREADABLE:
        return _refused("InvalidCertificate", f"{what}, entry {entries[0]}: a certificate cannot be read")
    try:
        private = private_key(key)
    except UNREADABLE:
        message = f"{what}, entry {entries[1]}: it is no private key, RSA or EC, in PEM without a password"
        return _refused("InvalidKey", message)
    first = certificates[0]
    if first.public_key() != private.public_key():
        return _refused("KeyMismatch", f"{what}: the key does not belong to the first certificate")
    now = time_of(now_ms)
    if first.not_valid_before_utc > now:
        return _refused(
            "NotYetValid", f"{what}: it is valid from {first.not_valid_before_utc:%Y-%m-%d %H:%M}"
        )
    pair = Pair(_lines(key), b"".join(map(_lines, certificates_in(chain))))
    end = first.not_valid_after_utc
    if end <= now:
        return _refused("Expired", f"{what}: it expired on {end:%Y-%m-%d}")
    if end - now <= timedelta(days=renewal_days):
        return Given(pair, Flaw("ExpiresSoon", f"{what}: it expires on {end:%Y-%m-%d}"))
    return Given(pair)


def given_authority(
    secrets: tuple[str, str],
    found: Mapping[str, Mapping[str, bytes]],
    renewal_days: int,
    now_ms: int,
    *,
    needs_key: bool,
) -> tuple[Given, bytes]:
    """The authority in two Secrets, and all certificates in them, its own first. `secrets`: with the
    certificate and with the key. Without `needs_key`, an authority may be without a key."""
    of_certificate, of_key = secrets
    public, private = found.get(of_certificate), found.get(of_key, {})
    what = f"Secret {of_certificate}"
    if public is None:
        return _refused("SecretNotFound", f"{what} does not exist"), b""
    if not public.get(CA_CERTIFICATE):
        return _refused("InvalidSecret", f"{what} has no entry {CA_CERTIFICATE}"), b""
    others = (public[entry] for entry in sorted(public) if entry.endswith(".crt") and entry != CA_CERTIFICATE)
    certificates = list(
        dict.fromkeys(map(_lines, certificates_in(b"\n".join((public[CA_CERTIFICATE], *others)))))
    )
    if not certificates or not all(map(_is_authority, certificates)):
        message = f"{what}: the entries *.crt must have certificates of authorities only"
        return _refused("InvalidCertificate", message), b""
    trusted = b"".join(certificates)
    if CA_KEY not in private and not needs_key:
        return Given(None), trusted
    if CA_KEY not in private:
        return _refused("SecretNotFound", f"Secret {of_key} does not exist or has no entry {CA_KEY}"), trusted
    data = {CA_CERTIFICATE: certificates[0], CA_KEY: private[CA_KEY]}
    what = f"Secrets {of_certificate} and {of_key}"
    return given_pair(what, data, (CA_CERTIFICATE, CA_KEY), renewal_days, now_ms), trusted


def trusted_certificates(
    what: str,
    sources: Iterable[TrustedCertificates],
    secrets: Mapping[str, Mapping[str, bytes]],
    config_maps: Mapping[str, Mapping[str, bytes]],
) -> tuple[bytes, list[Flaw]]:
    """The certificates of all sources, in PEM, and what is wrong with them. `what`: names the user."""
    found: dict[bytes, None] = {}
    flaws = []
    for source in sources:
        kind, name = "Secret", source.secret_name
        data = secrets.get(name or "")
        if name is None:
            kind, name = "ConfigMap", source.config_map_name
            data = config_maps.get(name or "")
        if data is None:
            flaws.append(Flaw(f"{kind}NotFound", f"{what}: {kind} {name} does not exist"))
            continue
        pattern = source.pattern or source.certificate or ""
        matching = [entry for entry in sorted(data) if entry == source.certificate or _matches(entry, source)]
        certificates = [pem for entry in matching for pem in certificates_in(data[entry])]
        if not certificates or not all(map(_is_readable, certificates)):
            flaws.append(
                Flaw("InvalidCertificate", f"{what}: {kind} {name}, entry {pattern}: there is no certificate")
            )
        found |= dict.fromkeys(_lines(pem) for pem in certificates if _is_readable(pem))
    return b"".join(found), flaws


def _matches(entry: str, source: TrustedCertificates) -> bool:
    return source.pattern is not None and fnmatchcase(entry, source.pattern)


def _is_readable(pem: bytes) -> bool:
    try:
        x509.load_pem_x509_certificate(pem)
    except UNREADABLE:
        return False
    return True


def lacks_hosts(pair: Pair, what: str, hosts: Iterable[str]) -> Flaw | None:
    """The hosts for which clients would refuse the certificate."""
    names = names_in(x509.load_pem_x509_certificate(pair.certificate))
    missing = [host for host in hosts if host not in names and _wildcard(host) not in names]
    if not missing:
        return None
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return Flaw("NamesMissing", f"{what}: it is not valid for {shown}")


def authorities_in(pem: bytes) -> list[bytes]:
    """The certificates of authorities in the file."""
    return [each for each in certificates_in(pem) if _is_authority(each)]


def _is_authority(pem: bytes) -> bool:
    try:
        extensions = x509.load_pem_x509_certificate(pem).extensions
        return bool(extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except (*UNREADABLE, x509.ExtensionNotFound):
        return False


def finding_of(flaws: Sequence[Flaw]) -> list[Finding]:
    """The condition with all flaws; empty when there are none."""
    return [no(CONDITION, flaws[0].reason, "; ".join(flaw.message for flaw in flaws))] if flaws else []


def _refused(reason: str, message: str) -> Given:
    return Given(None, Flaw(reason, message))


def _lines(pem: bytes) -> bytes:
    return pem.strip() + b"\n"


def _wildcard(host: str) -> str:
    return f"*.{host.partition('.')[2]}"
