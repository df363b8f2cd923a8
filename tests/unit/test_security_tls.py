"""Keys, certificates and principals of TLS clients, by Kafka's settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ottla.security.distinguished_names import MappingRules, subject_of
from ottla.security.principals import ANONYMOUS, DEFAULT_CLASS, Identity, Principal, principal_builder
from ottla.security.stores import StoreProblem
from ottla.security.tls import TlsSettings, client_context, openssl_name, server_context
from tests.certificates import PASSWORD, Authority, Certified

AUTHORITY = Authority()
BROKER = AUTHORITY.sign("broker")
ANNA = AUTHORITY.sign("Anna, of Bled")
DER = ssl.PEM_cert_to_DER_cert(ANNA.chain_pem)
SUBJECT = "CN=Anna\\, of Bled,OU=Tests,O=Ottla,C=SI"


def settings(**given: str) -> TlsSettings:
    return TlsSettings.of({f"ssl.{name.replace('_', '.')}": text for name, text in given.items()}.get)


def inline(certified: Certified = BROKER, *, password: str | None = None, **more: str) -> TlsSettings:
    return settings(
        keystore_type="PEM",
        keystore_key=certified.key_pem(password),
        keystore_certificate_chain=certified.chain_pem,
        truststore_type="PEM",
        truststore_certificates=AUTHORITY.pem,
        **({} if password is None else {"key_password": password}),
        **more,
    )


def shake_hands(server: TlsSettings, client: TlsSettings) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after their handshake. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server_context(server).wrap_bio(to_server, to_client, server_side=True)
    there = client_context(client).wrap_bio(to_client, to_server, server_hostname="localhost")
    undone = [here, there]
    for _ in range(10):
        undone = [side for side in undone if not _steps(side)]
    assert not undone
    with pytest.raises(ssl.SSLWantReadError):
        there.read()
    return here, there


def _steps(side: ssl.SSLObject) -> bool:
    """Whether its handshake is done."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_a_client_is_authenticated_by_its_certificate() -> None:
    here, there = shake_hands(inline(client_auth="required"), inline(ANNA))
    assert here.getpeercert(binary_form=True) == DER
    assert there.version() == "TLSv1.3"


def test_a_requested_client_certificate_is_optional() -> None:
    here, _ = shake_hands(
        inline(client_auth="requested"),
        settings(truststore_type="PEM", truststore_certificates=AUTHORITY.pem),
    )
    assert here.getpeercert(binary_form=True) is None


def test_certificates_of_another_authority_are_refused() -> None:
    with pytest.raises(ssl.SSLError):
        shake_hands(inline(client_auth="required"), inline(Authority("another").sign("eve")))


def test_versions_and_suites_are_chosen() -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    here, _ = shake_hands(inline(enabled_protocols="TLSv1.2", cipher_suites=suite), inline())
    assert here.version() == "TLSv1.2"
    cipher = here.cipher()
    assert cipher is not None
    assert cipher[0] == openssl_name(suite) == "ECDHE-ECDSA-AES256-GCM-SHA384"


def test_pem_without_line_breaks_is_read() -> None:
    flat = TlsSettings.of(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": BROKER.key_pem().replace("\n", " "),
            "ssl.keystore.certificate.chain": BROKER.chain_pem.replace("\n", ""),
        }.get
    )
    shake_hands(flat, inline())


def test_stores_are_read_from_files(tmp_path: Path) -> None:
    pem = settings(keystore_type="PEM", keystore_location=str(BROKER.write_pem(tmp_path / "own.pem")))
    p12 = str(BROKER.write_pkcs12(tmp_path / "own.p12"))
    for kind in ("PKCS12", "JKS"):  # Java, too, takes PKCS12 where JKS is said
        store = settings(
            keystore_type=kind,
            keystore_location=p12,
            keystore_password=PASSWORD,
            truststore_type=kind,
            truststore_location=p12,
            truststore_password=PASSWORD,
        )
        shake_hands(store, store)
        shake_hands(pem, store)


def test_a_key_may_have_a_password() -> None:
    shake_hands(inline(password="geheim"), inline())
    wrong = inline(password="geheim", client_auth="none")
    with pytest.raises(StoreProblem, match="do not match"):
        server_context(TlsSettings(**{**_fields(wrong), "key_password": "falsch"}))


def _fields(found: TlsSettings) -> dict[str, object]:
    return {name: getattr(found, name) for name in TlsSettings.__slots__}


def test_stores_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    jks = tmp_path / "own.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    p12 = str(BROKER.write_pkcs12(tmp_path / "own.p12"))
    for given, says in (
        ({}, "needs a key store"),
        ({"keystore_location": "/nowhere"}, "/nowhere: cannot be read"),
        ({"keystore_location": str(jks), "keystore_password": "x"}, "keytool -importkeystore"),
        ({"keystore_location": p12}, "ssl.keystore.password"),
        ({"keystore_location": p12, "keystore_password": "x"}, "cannot be opened"),
        ({"keystore_type": "BKS", "keystore_location": p12}, "BKS are not read"),
        ({"keystore_type": "PEM", "keystore_key": "x"}, "ssl.keystore.certificate.chain: needed"),
        ({"keystore_type": "PEM", "keystore_key": "x", "keystore_certificate_chain": "x"}, "0 private keys"),
        ({"keystore_key": "x"}, "needs ssl.keystore.type=PEM"),
    ):
        with pytest.raises(StoreProblem, match=says):
            server_context(settings(**given))
    with pytest.raises(StoreProblem, match=r"ssl\.enabled\.protocols: SSLv3"):
        server_context(inline(enabled_protocols="SSLv3"))


def test_a_changed_file_is_detected(tmp_path: Path) -> None:
    path = BROKER.write_pem(tmp_path / "own.pem")
    found = settings(keystore_type="PEM", keystore_location=str(path))
    before = found.stamp()
    assert found.stamp() == before
    ANNA.write_pem(path)
    assert found.stamp() != before


# --- names ------------------------------------------------------------------------------------------------


def test_a_subject_is_written_as_java_writes_it() -> None:
    assert subject_of(DER) == SUBJECT


@pytest.mark.parametrize(
    "data",
    [b"", b"\x30", b"\x30\x05abc", DER[:60], b"no certificate at all"],
    ids=["nothing", "a tag", "a short one", "the head of one", "words"],  # the head is another each time
)
def test_an_invalid_certificate_has_no_subject(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a certificate"):
        subject_of(data)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=Duke,OU=x", "Duke"),
        ("RULE:^CN=(.*?),.*$/$1/L", "CN=Duke,OU=x", "duke"),
        ("RULE:^CN=(.*?),.*$/$1@home/U , DEFAULT", "CN=Duke,OU=x", "DUKE@HOME"),
        ("RULE:^OU=(.*)$/$1/,DEFAULT", "CN=Duke,OU=x", "CN=Duke,OU=x"),
        ("RULE:^CN=([^,]+),.*$/$1$9/", "CN=Duke,OU=x", "Duke$9"),
    ],
)
def test_mapping_rules_turn_a_subject_into_a_principal(rules: str, subject: str, name: str) -> None:
    assert MappingRules(rules).name_of(subject) == name


def test_a_name_without_a_matching_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="No rules apply to CN=a"):
        MappingRules("RULE:^OU=(.*)$/$1/").name_of("CN=a")
    for bad in ("RULES:x/y/", "RULE:x/y", "RULE:(/y/"):
        with pytest.raises(ValueError, match="Invalid rule"):
            MappingRules(bad)


class Shouting:
    def build(self, identity: Identity) -> Principal:
        return Principal("Group", (identity.authorization_id or identity.listener).upper())


def test_principals_are_built_by_kafkas_rules_or_a_custom_builder() -> None:
    default = principal_builder(DEFAULT_CLASS, "RULE:^.*OU=([^,]+),.*$/$1/")
    assert default.build(Identity("SSL", "SSL", "h", DER)) == Principal("User", "Tests")
    assert default.build(Identity("SSL", "SSL", "h")) == ANONYMOUS
    by_sasl = Identity("SASL_SSL", "X", "h", DER, "PLAIN", "anna")
    assert default.build(by_sasl) == Principal("User", "anna")
    own = principal_builder(f"{__name__}.Shouting", "DEFAULT")
    assert own.build(by_sasl) == Principal("Group", "ANNA")
    for name in ("no.such.Builder", "ottla.security.principals.USER", "ottla.security.principals.ANONYMOUS"):
        with pytest.raises(ValueError, match=r"principal\.builder\.class"):
            principal_builder(name, "DEFAULT")
