"""Dynamic settings that brokers share through the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.metadata import znodes
from ottla.metadata.dynamic_configs import DynamicConfigs
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.notifications import EXPIRATION_MS
from ottla.metadata.registration import ensure_tree
from tests.worlds.clocks import run_in_virtual_time

WAIT_S = 60.0


class RecordingConfigs:
    """A broker's dynamic settings, with callbacks that record changes."""

    def __init__(self, tree: MemoryTree, clock: Callable[[], int] | None = None) -> None:
        self.store = MemoryStore(tree)
        self.topics: dict[str, dict[str, str]] = {}
        self.brokers: dict[str, dict[str, str]] = {}
        self.calls = 0
        self._changed = asyncio.Event()
        self.configs = DynamicConfigs(self.store, self._on_topic, self._on_broker, clock=clock)

    def _on_topic(self, topic: str, config: dict[str, str]) -> None:
        self.topics[topic] = config
        self.calls += 1
        self._changed.set()

    def _on_broker(self, broker: str, config: dict[str, str]) -> None:
        self.brokers[broker] = config
        self._changed.set()

    async def start(self) -> None:
        await self.store.connect()
        await ensure_tree(self.store)
        await self.configs.start()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.wait_for(self._changed.wait(), WAIT_S)
            self._changed.clear()


def run(scenario: Callable[[MemoryTree], Coroutine[Any, Any, None]], now_ms: int = 0) -> None:
    run_in_virtual_time(asyncio.wait_for(scenario(MemoryTree(lambda: now_ms)), 120))


def test_settings_are_loaded_at_start_and_followed_afterwards() -> None:
    async def scenario(tree: MemoryTree) -> None:
        writer = RecordingConfigs(tree)
        await writer.start()
        await writer.configs.alter_topic_config("early", {"retention.ms": "1"})
        reader = RecordingConfigs(tree)
        await reader.start()
        assert reader.topics == {"early": {"retention.ms": "1"}}
        await writer.configs.alter_topic_config("late", {"segment.ms": "2"})
        await reader.until(lambda: reader.topics.get("late") == {"segment.ms": "2"})
        await writer.configs.alter_topic_config("early", {})
        await reader.until(lambda: reader.topics["early"] == {})
        await writer.until(lambda: writer.topics.get("late") == {"segment.ms": "2"})
        assert await reader.configs.topic_config("late") == {"segment.ms": "2"}
        change = tree.find("/config/changes/config_change_0000000001")
        assert change is not None
        assert znodes.decode_config_change(change.data) == "topics/late"
        for recording in (writer, reader):
            await recording.configs.stop()

    run(scenario)


def test_broker_settings_and_their_default_are_followed_too() -> None:
    async def scenario(tree: MemoryTree) -> None:
        recording = RecordingConfigs(tree)
        await recording.start()
        await recording.configs.alter_broker_config(znodes.DEFAULT_ENTITY, {"log.retention.ms": "1"})
        await recording.configs.alter_broker_config("3", {"log.retention.ms": "2"})
        await recording.until(lambda: len(recording.brokers) == 2)
        assert recording.brokers == {"<default>": {"log.retention.ms": "1"}, "3": {"log.retention.ms": "2"}}
        assert await recording.configs.broker_config("3") == {"log.retention.ms": "2"}
        await recording.configs.stop()

    run(scenario)


def test_changes_during_a_lost_session_are_applied_afterwards() -> None:
    async def scenario(tree: MemoryTree) -> None:
        recording, writer = RecordingConfigs(tree), RecordingConfigs(tree)
        await recording.start()
        await writer.start()
        tree._watches.clear()  # nothing is delivered to a session that is gone
        await writer.configs.alter_topic_config("t", {"retention.ms": "9"})
        recording.store.expire()
        await recording.until(lambda: recording.topics.get("t") == {"retention.ms": "9"})
        for each in (recording, writer):
            await each.configs.stop()

    run(scenario)


def test_damaged_settings_and_failing_callbacks_do_not_stop_notifications() -> None:
    async def scenario(tree: MemoryTree) -> None:
        recording = RecordingConfigs(tree)
        await recording.start()
        store = recording.store
        await store.create(znodes.topic_config_path("bad"), b"not json")
        for data in (b"not json", znodes.encode_config_change("topics/bad")):
            await store.create(znodes.CONFIG_CHANGE_PREFIX, data, sequential=True)
        await recording.configs.alter_topic_config("good", {"retention.ms": "5"})
        await recording.until(lambda: "good" in recording.topics)
        assert "bad" not in recording.topics
        await recording.configs.stop()

    run(scenario)


def test_unexpected_errors_do_not_stop_notifications() -> None:
    async def scenario(tree: MemoryTree) -> None:
        recording = RecordingConfigs(tree)
        troubles = ["callback", "store"]

        class Trouble(Exception): ...

        def on_broker(broker: str, config: dict[str, str]) -> None:
            if troubles:
                raise Trouble(troubles.pop(0))
            recording._on_broker(broker, config)

        recording.configs = DynamicConfigs(recording.store, recording._on_topic, on_broker)
        await recording.start()
        await recording.configs.alter_broker_config("1", {"log.retention.ms": "1"})
        await recording.configs.alter_topic_config("one", {"retention.ms": "5"})
        await recording.until(lambda: "one" in recording.topics)
        assert troubles == ["store"]
        children = recording.store.children

        async def fail_once(path: str) -> list[str]:
            recording.store.children = children  # type: ignore[method-assign]
            raise Trouble(troubles.pop())

        recording.store.children = fail_once  # type: ignore[method-assign]
        await recording.configs.alter_topic_config("two", {"retention.ms": "6"})
        await recording.until(lambda: "two" in recording.topics)
        assert troubles == []
        await recording.configs.stop()

    run(scenario)


def test_valid_settings_of_a_manually_written_node_are_applied() -> None:
    async def scenario(tree: MemoryTree) -> None:
        recording = RecordingConfigs(tree)
        settings = {"retention.ms": "soon", "segment.bytes": "2000", "no.such.setting": "1"}
        await recording.start()
        await recording.configs.alter_topic_config("t", settings)
        await recording.until(lambda: "t" in recording.topics)
        assert recording.topics["t"] == {"segment.bytes": "2000"}
        assert await recording.configs.topic_config("t") == settings, "who describes or mends it sees it all"
        await recording.configs.stop()

    run(scenario)


def test_old_notifications_are_purged_by_any_broker() -> None:
    async def scenario(tree: MemoryTree) -> None:
        now = [EXPIRATION_MS]
        tree._clock = lambda: now[0]
        recording = RecordingConfigs(tree, clock=lambda: now[0])
        await recording.start()
        await recording.configs.alter_topic_config("old", {})
        now[0] += EXPIRATION_MS + 1
        await recording.configs.alter_topic_config("new", {})
        await recording.until(lambda: "new" in recording.topics)
        purged = asyncio.Event()
        await recording.store.watch_children(znodes.CONFIG_CHANGES, purged.set)
        if len(await recording.store.children(znodes.CONFIG_CHANGES)) > 1:
            await asyncio.wait_for(purged.wait(), WAIT_S)
        assert await recording.store.children(znodes.CONFIG_CHANGES) == ["config_change_0000000001"]
        await recording.configs.stop()

    run(scenario)


def test_settings_of_named_topics_can_be_loaded_at_any_time() -> None:
    async def scenario(tree: MemoryTree) -> None:
        recording = RecordingConfigs(tree)
        await recording.start()
        data = znodes.encode_config({"retention.ms": "7"})
        await recording.store.create(znodes.topic_config_path("t"), data)
        await recording.configs.load_topics(["t", "none"])
        assert recording.topics == {"t": {"retention.ms": "7"}, "none": {}}
        await recording.configs.stop()

    run(scenario)
