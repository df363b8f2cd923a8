"""The next start of a crashed broker closes its former session before the time-out."""

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


def test_the_session_of_a_crashed_process_is_closed_with_its_ephemeral_nodes(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        crashed = await connected(tree)
        await crashed.create("/mine", b"", ephemeral=True)
        save_session(OS_FILES, crashed, [tmp_path])
        next_run = await connected(tree)
        assert await expire_session(OS_FILES, next_run, [tmp_path])
        assert await next_run.exists("/mine") is None

    asyncio.run(scenario())


def test_a_closed_session_leaves_no_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await connected(MemoryTree())
        assert not await expire_session(OS_FILES, store, [tmp_path])
        save_session(OS_FILES, store, [tmp_path])
        clear_session(OS_FILES, [tmp_path])
        assert not await expire_session(OS_FILES, store, [tmp_path])

    asyncio.run(scenario())


def test_an_invalid_file_does_not_prevent_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        (tmp_path / FILE_NAME).write_text("torn")
        assert await expire_session(OS_FILES, await connected(MemoryTree()), [tmp_path])

    asyncio.run(scenario())
    assert "has no valid session" in caplog.text


def test_the_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        save_session(OS_FILES, await connected(MemoryTree()), [tmp_path])

    asyncio.run(scenario())
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
