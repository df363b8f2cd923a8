"""A crashed broker's session is ended by its next start, not by its time-out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.unclean_restart import FILE_NAME, clear_session, expire_session, save_session
from ottla.ports.files import OS_FILES


async def connected(tree: MemoryTree) -> MemoryStore:
    store = MemoryStore(tree)
    await store.connect()
    return store


def test_the_session_of_a_crashed_run_is_ended_with_its_ephemeral_nodes(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        crashed = await connected(tree)
        await crashed.create("/mine", b"", ephemeral=True)
        save_session(OS_FILES, crashed, [tmp_path])
        next_run = await connected(tree)
        assert await expire_session(OS_FILES, next_run, [tmp_path])
        assert await next_run.exists("/mine") is None

    asyncio.run(scenario())


def test_a_session_that_ended_in_order_leaves_nothing_to_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await connected(MemoryTree())
        assert not await expire_session(OS_FILES, store, [tmp_path])
        save_session(OS_FILES, store, [tmp_path])
        clear_session(OS_FILES, [tmp_path])
        assert not await expire_session(OS_FILES, store, [tmp_path])

    asyncio.run(scenario())


def test_a_file_of_nonsense_is_no_reason_not_to_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        (tmp_path / FILE_NAME).write_text("torn")
        assert await expire_session(OS_FILES, await connected(MemoryTree()), [tmp_path])

    asyncio.run(scenario())
    assert "has no valid session" in caplog.text


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        save_session(OS_FILES, await connected(MemoryTree()), [tmp_path])

    asyncio.run(scenario())
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
