"""The state file for probes follows the broker's life cycle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.cli import broker as module
from ottla.cli.broker import state_file


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
