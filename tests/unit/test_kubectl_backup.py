"""`kubectl ottla backup` and `restore`: the requests that they make, and what they send to a broker."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla_operator.backup.document import Backup, dumped
from ottla_operator.kubectl import command

TAKEN = {"lastObject": "s3://b/x/demo-1", "message": "1 topic", "lastAttemptAt": "t", "lastSuccessfulAt": "t"}
CONTENT = dumped(Backup("id", "2026-11-27T14:05:12Z"))


class FakeKubectl:
    """A cluster whose operator answers a request for a backup at once, with this status."""

    def __init__(self, **status: str) -> None:
        self.spec: dict[str, Any] = {"replicas": 1, "backup": {"destination": "s3://b/x"}}
        self.answer = status
        self.status: dict[str, Any] = {}
        self.sent: tuple[tuple[str, ...], str | None] | None = None

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        match arguments:
            case ("get", "-o", "json", "brokerclusters.ottla.dev", "demo"):
                return json.dumps({"spec": self.spec, "status": self.status})
            case ("annotate", "brokerclusters.ottla.dev", "demo", annotation, "--overwrite"):
                name, _, request = annotation.partition("=")
                assert name == "ottla.dev/backup-requested-at"
                self.status = {"backup": {**self.answer, "handledRequest": request}}
                return ""
            case ("get", "-o", "json", "pods", *_):
                pod = {
                    "metadata": {"name": "demo-brokers-0"},
                    "status": {"containerStatuses": [{"ready": True}]},
                }
                return json.dumps({"items": [pod]})
            case ("exec", *_):
                self.sent = arguments, stdin
                return "nothing to restore\n"
        raise AssertionError(arguments)


def run(fake: FakeKubectl, monkeypatch: pytest.MonkeyPatch, *typed: str) -> tuple[int, str]:
    monkeypatch.setattr(command.Kubectl, "__init__", lambda self: None)
    monkeypatch.setattr(command.Kubectl, "run", lambda self, *arguments, **more: fake(*arguments, **more))
    done = CliRunner().invoke(command.main, typed)
    return done.exit_code, done.output


def test_a_backup_is_requested_and_its_object_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKubectl(
        lastObject="s3://b/x/demo-1", message="1 topic", lastAttemptAt="t", lastSuccessfulAt="t"
    )
    assert run(fake, monkeypatch, "backup", "demo", "--wait") == (0, "s3://b/x/demo-1: 1 topic\n")


def test_a_failed_backup_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKubectl(
        lastObject="s3://b/x/demo-1", message="no bucket", lastAttemptAt="u", lastSuccessfulAt="t"
    )
    assert run(fake, monkeypatch, "backup", "demo", "--wait") == (1, "Error: no bucket\n")


def test_without_a_destination_nothing_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKubectl()
    fake.spec = {"replicas": 1}
    code, output = run(fake, monkeypatch, "backup", "demo")
    assert (code, "has no spec.backup" in output, fake.status) == (1, True, {})


@pytest.mark.parametrize("folder", [False, True])
def test_a_backup_is_sent_to_a_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: bool) -> None:
    file = tmp_path / "demo-20261127T140512Z.ndjson.gz"
    file.write_bytes(CONTENT)
    fake = FakeKubectl()
    source = f"file://{tmp_path}" if folder else str(file)
    code, output = run(fake, monkeypatch, "restore", "demo", "--from", source, "--only", "acls", "--dry-run")
    assert code == 0, output
    assert output.endswith("nothing to restore\n")
    assert fake.sent is not None
    arguments, stdin = fake.sent
    assert arguments[:3] == ("exec", "-i", "demo-brokers-0")
    assert arguments[-7:] == ("restore", "--from", "-", "--base64", "--only", "acls", "--dry-run")
    assert base64.b64decode(stdin or "") == CONTENT


def test_a_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(FakeKubectl(), monkeypatch, "restore", "demo", "--from", "/nowhere")
    assert (code, output) == (1, "Error: /nowhere: No such file or directory\n")
