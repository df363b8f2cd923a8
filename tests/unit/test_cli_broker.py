"""`ottla broker` rejects an invalid start in one line per problem, and exits with 2."""

from __future__ import annotations

import resource
from pathlib import Path

from click.testing import CliRunner

from ottla.cli.broker import raise_descriptor_limit
from ottla.cli.main import main


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["broker", *arguments])
    return result.exit_code, result.output


def test_invalid_settings_are_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=0\nzookeeper.connect=127.0.0.1:1\nnum.partitions=0\nlog.segment.bytes=x\n")
    code, output = run("--config", str(file))
    assert code == 2
    assert "num.partitions=0: must be at least 1" in output
    assert "log.segment.bytes=x: must be a whole number" in output


def test_missing_required_settings_are_named(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("")
    code, output = run("--config", str(file))
    assert code == 2
    assert "broker.id: not set" in output
    assert "zookeeper.connect: not set" in output


def test_an_override_without_a_setting_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=0\n")
    code, output = run("--config", str(file), "--override", "num.partitions")
    assert code == 2
    assert "must be NAME=VALUE" in output


def test_a_missing_properties_file_is_named(tmp_path: Path) -> None:
    code, output = run("--config", str(tmp_path / "nowhere.properties"))
    assert code == 2
    assert "cannot read" in output


def test_a_broker_raises_its_descriptor_limit_to_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
