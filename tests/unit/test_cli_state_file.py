"""The state file for probes follows the broker's life cycle."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from ottla.cli import broker as module
from ottla.cli.broker import state_file
from ottla.metadata.config import BrokerConfig
from ottla.metadata.zookeeper_access import ZooKeeperAccess


def test_the_file_has_the_brokers_state_and_is_removed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STATE_INTERVAL_S", 0.001)
    path, phases = tmp_path / "run" / "state", ["recovering"]

    async def says(line: str) -> None:
        while not path.exists() or path.read_text() != f"{line}\n":  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def life() -> None:
        async with asyncio.timeout(90), state_file(path, lambda: phases[0]):
            await says("recovering")
            phases[0] = "ready"
            await says("ready")
        assert list(path.parent.iterdir()) == []

    asyncio.run(life())


def test_no_file_is_written_without_a_path(tmp_path: Path) -> None:
    async def life() -> None:
        async with state_file(None, lambda: "ready"):
            pass

    asyncio.run(life())
    assert list(tmp_path.iterdir()) == []


def test_a_fenced_broker_serves_nothing_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """It needs neither ZooKeeper nor its log directory."""
    state = tmp_path / "state"
    settings = {"broker.id": "1", "zookeeper.connect": "nowhere:1", "log.dirs": str(tmp_path / "data")}
    config = BrokerConfig.from_properties({**settings, "ottla.fenced": "true"})

    async def life() -> int:
        serving = asyncio.ensure_future(module._serve(config, ZooKeeperAccess.of(config, {}), state))
        while not state.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert state.read_text() == "fenced\n"
        signal.raise_signal(signal.SIGTERM)
        return await serving

    assert asyncio.run(life()) == 0
    assert list(tmp_path.iterdir()) == []
