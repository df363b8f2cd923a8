"""The store of client quotas, and its notifications. tests/interop/kafka/test_quotas_like_kafka.py compares
responses and nodes with Kafka's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from ottla.metadata import znodes
from ottla.metadata.client_quotas import (
    StoredQuotas,
    desanitize,
    quota_entity,
    quota_listener,
    sanitize,
)
from ottla.metadata.config_def import double_text
from ottla.metadata.dynamic_configs import DynamicConfigs
from ottla.metadata.memory import MemoryStore, MemoryTree
from ottla.metadata.registration import ensure_tree
from ottla.ports.tasks import TaskSet
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quotas.levels import DEFAULT, UNNAMED, QuotaEntity

WAIT_S = 60.0


class Broker:
    """A broker that records its quotas."""

    def __init__(self, tree: MemoryTree) -> None:
        self.store = MemoryStore(tree)
        self.by_entity: dict[QuotaEntity, Mapping[str, str]] = {}
        self.addresses: dict[str | None, Mapping[str, str]] = {}
        self._changed = asyncio.Event()
        self.configs = DynamicConfigs(
            self.store,
            lambda topic, config: None,
            on_quota_config=quota_listener(self._on_quota, self._on_address, TaskSet()),
        )
        self.quotas = StoredQuotas(self.configs)

    def _on_address(self, address: str | None, config: Mapping[str, str]) -> None:
        self.addresses[address] = config
        self._changed.set()

    def _on_quota(self, entity: QuotaEntity, config: Mapping[str, str]) -> None:
        self.by_entity[entity] = config
        self._changed.set()

    async def __aenter__(self) -> Broker:
        await self.store.connect()
        await ensure_tree(self.store)
        await self.configs.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.configs.stop()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.wait_for(self._changed.wait(), WAIT_S)
            self._changed.clear()


def run(scenario: Callable[[MemoryTree], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(MemoryTree(lambda: 0)), 120))


def test_quotas_are_loaded_at_start_and_followed_afterwards() -> None:
    async def scenario(tree: MemoryTree) -> None:
        async with Broker(tree) as writer:
            rate = [("producer_byte_rate", 10.0)]
            await writer.quotas.alter({"user": "a/b", "client-id": None}, rate, validate_only=False)
            await writer.quotas.alter({"client-id": "<default>"}, rate, validate_only=False)
            await writer.quotas.alter({"ip": None}, [("connection_creation_rate", 1.0)], validate_only=False)
            async with Broker(tree) as reader:
                pair, client = QuotaEntity("a/b", DEFAULT), QuotaEntity(UNNAMED, "<default>")
                config = {"producer_byte_rate": "10"}
                # The node of the pair's user, which holds nothing, is told of too.
                assert reader.by_entity == {pair: config, client: config, QuotaEntity("a/b", UNNAMED): {}}
                await writer.quotas.alter({"user": None}, rate, validate_only=False)
                await reader.until(lambda: reader.by_entity.get(QuotaEntity(DEFAULT, UNNAMED)) == config)
                gone: list[tuple[str, float | None]] = [("producer_byte_rate", None)]
                await writer.quotas.alter({"client-id": "<default>"}, gone, validate_only=False)
                await reader.until(lambda: reader.by_entity[client] == {})
                assert await reader.store.children("/config/clients") == []

    run(scenario)


def test_an_invalid_node_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(tree: MemoryTree) -> None:
        store = MemoryStore(tree)
        await store.connect()
        await ensure_tree(store)
        await store.create("/config/clients/bad", b"{")
        await store.create(
            "/config/clients/good", znodes.encode_config({"consumer_byte_rate": "5"}), make_parents=True
        )
        async with Broker(tree) as broker:
            assert broker.by_entity == {QuotaEntity(UNNAMED, "good"): {"consumer_byte_rate": "5"}}
            with pytest.raises(znodes.InvalidNode):
                await broker.quotas.describe([], strict=False)

    run(scenario)
    assert "clients/bad" in caplog.text


def test_credentials_of_a_user_outlive_its_quotas() -> None:
    async def scenario(tree: MemoryTree) -> None:
        async with Broker(tree) as broker:
            await broker.configs.alter_entity("users", "anna", {"SCRAM-SHA-256": "salt"})
            anna = {"user": "anna"}
            await broker.quotas.alter(anna, [("producer_byte_rate", 1.0)], validate_only=False)
            assert await broker.quotas.describe([], strict=False) == [(anna, {"producer_byte_rate": 1.0})]
            await broker.quotas.alter(anna, [("producer_byte_rate", None)], validate_only=False)
            assert await broker.configs.entity_config("users", "anna") == {"SCRAM-SHA-256": "salt"}
            assert await broker.quotas.describe([], strict=False) == []

    run(scenario)


def test_a_node_with_an_unknown_setting_cannot_be_changed() -> None:
    async def scenario(tree: MemoryTree) -> None:
        async with Broker(tree) as broker:
            await broker.configs.alter_entity("clients", "c", {"from.the.future": "1"})
            with pytest.raises(KafkaError) as refused:
                await broker.quotas.alter(
                    {"client-id": "c"}, [("producer_byte_rate", 1.0)], validate_only=False
                )
            assert refused.value.code == ErrorCode.UNKNOWN_SERVER_ERROR

    run(scenario)


def test_names_of_nodes_are_encoded_and_back() -> None:
    for name in ("plain", "a b", "CN=x,O=y", "*+~%/", "ö", "<default>", None):
        assert desanitize(sanitize(name)) == name
    assert sanitize(None) == "<default>"
    assert sanitize("a *~") == "a%20%2A%7E"


def test_paths_without_an_entity_are_refused() -> None:
    for entity_type, path in (("clients", "a/b"), ("users", "a/b"), ("users", "a/topics/b"), ("ips", "a")):
        with pytest.raises(ValueError, match="neither a user nor a client"):
            quota_entity(entity_type, path)


def test_numbers_are_written_as_java_writes_them() -> None:
    written = {0.0: "0.0", 12.5: "12.5", 1e6: "1000000.0", 1e7: "1.0E7", 1.25e-4: "1.25E-4", -2e20: "-2.0E20"}
    assert {value: double_text(value) for value in written} == written


def test_quotas_of_ips_are_notified_by_address_and_by_host_name() -> None:
    rate = {"connection_creation_rate": "5"}

    async def story() -> None:
        tree = MemoryTree()
        async with Broker(tree) as here, Broker(tree) as writer:
            for name in ("10.0.0.1", "localhost", None):
                address = {"ip": name}
                await writer.quotas.alter(address, [("connection_creation_rate", 5.0)], validate_only=False)
            await here.until(lambda: len(here.addresses) >= 3)
            assert here.addresses.pop("10.0.0.1") == here.addresses.pop(None) == rate
            resolved = set(here.addresses)
            assert resolved <= {"127.0.0.1", "::1"}
            await writer.quotas.alter({"ip": None}, [("connection_creation_rate", None)], validate_only=False)
            await here.until(lambda: here.addresses.get(None) == {})

    asyncio.run(story())
