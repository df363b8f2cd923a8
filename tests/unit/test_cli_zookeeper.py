"""`ottla zookeeper` takes a server's id from its pod's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.zookeeper import server_id, zookeeper


@pytest.mark.parametrize(
    ("hostname", "expected"), [("demo-zookeeper-0", 1), ("demo-zookeeper-2.demo.svc", 3), ("z-10", 11)]
)
def test_ids_begin_with_one(hostname: str, expected: int) -> None:
    assert server_id(hostname) == expected


def test_a_data_folder_that_is_not_absolute_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_ZOOKEEPER_JARS", str(tmp_path))
    config = tmp_path / "zoo.cfg"
    config.write_text("dataDir=data\nclientPort=2181\n")
    result = CliRunner().invoke(zookeeper, ["--config", str(config)])
    assert result.exit_code == 1
    assert "dataDir must be an absolute path" in result.output
