"""Who may ask the registry what: passwords, client certificates, and rules for subjects."""

from __future__ import annotations

import base64
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from ottla.local.processes import wait_until
from ottla_pipeline.registry.access import Access, Passwords, Rule, hashed
from ottla_pipeline.registry.command import main as command
from tests.certificates import Authority
from tests.judges.one_broker import OneBroker
from tests.judges.registries import Registry, rules_file


def client(registry: Registry, name: str, password: str | None = None) -> SchemaRegistryClient:
    login = f"{name}:{password or name + '-secret'}"
    return registry.client(basic_auth_user_info=login)


def test_users_have_the_access_of_their_rules(broker: OneBroker, tmp_path: Path) -> None:
    options = ("--access", str(rules_file(tmp_path)))
    with Registry(broker.bootstrap, tmp_path, "_schemas_access", *options) as registry:
        writer, reader, admin = (client(registry, name) for name in ("writer", "reader", "admin"))
        number = writer.register_schema("flights-value", Schema('"int"'))
        assert reader.get_latest_version("flights-value").schema_id == number
        admin.register_schema("secret", Schema('"string"'))
        assert (reader.get_subjects(), admin.get_subjects()) == (
            ["flights-value"],
            ["flights-value", "secret"],
        )
        for denied in (
            lambda: reader.register_schema("flights-value", Schema('"long"')),
            lambda: reader.delete_subject("flights-value"),
            lambda: reader.set_compatibility("flights-value", "NONE"),
            lambda: writer.register_schema("secret", Schema('"int"')),
            lambda: writer.get_latest_version("secret"),
            lambda: writer.set_compatibility(level="NONE"),
            lambda: reader.get_schema(number + 1),
        ):
            with pytest.raises(SchemaRegistryError) as refused:
                denied()
            assert (refused.value.http_status_code, refused.value.error_code) == (403, 40301)
        assert admin.set_compatibility(level="NONE") == {"compatibility": "NONE"}
        for wrong in (client(registry, "reader", "x"), client(registry, "stranger"), registry.client()):
            with pytest.raises(SchemaRegistryError) as unknown:
                wrong.get_subjects()
            assert (unknown.value.http_status_code, unknown.value.error_code) == (401, 40101)
        assert registry.ask("GET", "/healthz")[0] == 200
        reference = [{"name": "S", "subject": "secret", "version": 1}]
        header = base64.b64encode(b"writer:writer-secret").decode()
        request = urllib.request.Request(
            f"{registry.url}/subjects/flights-value/versions",
            str({"schema": '"int"', "references": reference})
            .replace("'", '"')
            .replace('""int""', '"\\"int\\""')
            .encode(),
            {"Authorization": f"Basic {header}"},
        )
        with pytest.raises(urllib.error.HTTPError) as through:
            urllib.request.urlopen(request, timeout=30)
        with through.value as answer:
            assert answer.code == 403, "who may not read a schema may not refer to it"


def test_the_principal_is_that_of_the_clients_certificate(broker: OneBroker, tmp_path: Path) -> None:
    authority = Authority()
    trusted = str(authority.write(tmp_path / "ca.pem"))
    server, own = (
        str(authority.sign(name).write_pem(tmp_path / f"{name}.pem")) for name in ("server", "reader")
    )
    options = ["--tls-certificate", server, "--tls-key", server]
    options += ["--tls-client-ca", trusted, "--tls-client-optional"]
    options += [
        "--tls-principal-mapping",
        "RULE:^.*CN=([^,]*).*$/$1/L",
        "--access",
        str(rules_file(tmp_path)),
    ]
    registry = Registry(broker.bootstrap, tmp_path, "_schemas_tls", *options)
    registry.launch()
    url = registry.url.replace("http", "https")
    try:
        trust = ssl.create_default_context(cafile=trusted)

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(f"{url}/healthz", timeout=5, context=trust) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        assert wait_until(healthy, timeout_s=60), registry.log.read_text()
        common = {"url": url, "ssl.ca.location": trusted, "max.retries": 0}
        pair = {"ssl.certificate.location": own, "ssl.key.location": own}
        with SchemaRegistryClient({**common, **pair}) as reader:
            assert reader.get_subjects() == []
            with pytest.raises(SchemaRegistryError) as denied:
                reader.register_schema("flights-value", Schema('"int"'))
            assert denied.value.error_code == 40301
            assert "User reader is denied" in str(denied.value)
        with SchemaRegistryClient(common) as anonymous:
            with pytest.raises(SchemaRegistryError) as unknown:
                anonymous.get_subjects()
            assert unknown.value.error_code == 40101
        with SchemaRegistryClient({**common, "basic.auth.user.info": "writer:writer-secret"}) as writer:
            assert writer.register_schema("flights-value", Schema('"int"')) == 1
    finally:
        registry.stop()
        registry.kill()


def test_wrong_passwords_are_rejected() -> None:
    passwords = Passwords({"a": hashed("right"), "b": hashed("other")})
    assert not passwords.is_known("a", "right")
    assert passwords.verify("a", "right")
    assert passwords.is_known("a", "right")
    assert not passwords.is_known("a", "wrong")
    assert not passwords.verify("a", "wrong")
    assert not passwords.verify("b", "right")
    assert not passwords.verify("nobody", "")


def test_an_invalid_access_file_is_rejected_with_the_place_of_the_error(tmp_path: Path) -> None:
    for text, reason in (
        ("users: {a: secret-in-clear}", "not a hash"),
        ("rules: [{user: a, allow: everything, subjects: [x]}]", "rules.0.allow"),
        ("rules: [{user: a, allow: read, subjects: []}]", "rules.0.subjects"),
        ("rule: []", "rule: "),
        ("{", "not YAML"),
    ):
        path = tmp_path / "access.yaml"
        path.write_text(text)
        ran = CliRunner().invoke(command, ["--bootstrap", "h:1", "--access", str(path)])
        assert (ran.exit_code, reason in ran.output) == (2, True), ran.output
        assert "secret-in-clear" not in ran.output


def test_the_command_hashes_passwords() -> None:
    ran = CliRunner().invoke(command, ["--hash-password"], input="pass\npass\n")
    text = ran.stdout.splitlines()[-1]
    access = Access(users={"a": text}, rules=[Rule(user="a", allow="read", subjects=["*"])])
    assert Passwords(access.users).verify("a", "pass")
