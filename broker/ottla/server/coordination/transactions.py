"""A broker's components for transactions: the coordinator over its replicas of `__transaction_state`,
transaction markers, the verification of partitions, and producer ids.

Called by ottla.server.assembly.components. When this broker becomes leader of a partition of that topic, or
stops being it (the purgatory forwards both from replication), the transactions in it are loaded or unloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.coordinators.config import TransactionConfig, read_config
from ottla.coordinators.interfaces import NoProducerId
from ottla.coordinators.transactions.coordinator import TransactionCoordinator
from ottla.metadata.cache import MetadataCache
from ottla.metadata.dynamic_broker_config import DynamicBrokerConfig
from ottla.metadata.producer_ids import NoBlock, ProducerIdBlock, ProducerIds
from ottla.metadata.store import MetadataStore
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import AllocateProducerIdsRequest
from ottla.protocol.topics import TRANSACTIONS_TOPIC
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.controller_channel import ControllerChannel
from ottla.server.coordination.replicated_log import ReplicatedCoordinatorLog, stored_partitions
from ottla.server.coordination.transaction_markers import (
    TransactionMarkerChannelManager,
    TransactionMarkerWriter,
)
from ottla.server.coordination.transaction_verification import AddPartitionsToTxnManager
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.logs.page_cache_reader import PageCacheReader
from ottla.wire.inter_broker import InterBrokerClient

_PRODUCER_ID_WAIT_S: Final = 2.0
"""Shorter than clients' request timeouts: a retriable error is better than a timeout."""
VERIFICATION: Final = "transaction.partition.verification.enable"


class TransactionService:
    """See the module. Handlers use its `coordinator`, `marker_writer` and `add_partitions_manager`."""

    def __init__(
        self,
        settings: DynamicBrokerConfig,
        *,
        broker_epoch: Callable[[], int],
        store: MetadataStore,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        cache: MetadataCache,
        channel: ControllerChannel,
        inter_broker: InterBrokerClient,
        clock: Callable[[], int],
        page_cache_reader: PageCacheReader,
    ) -> None:
        self._config = config = settings.config
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._store = store
        self._replicas = replicas
        self._cache = cache
        self._channel = channel
        self._partitions: int | None = None
        timeout_ms = config.get_int("request.timeout.ms")
        self._producer_ids = ProducerIds(self._allocate_producer_ids)

        self.marker_writer = TransactionMarkerWriter(replicas, purgatory, clock, timeout_ms=timeout_ms)
        self.markers = TransactionMarkerChannelManager(
            config.broker_id, cache, inter_broker, self.marker_writer
        )
        self.coordinator = TransactionCoordinator(
            config=read_config(TransactionConfig, config.get_int),
            log=ReplicatedCoordinatorLog(
                TRANSACTIONS_TOPIC,
                replicas,
                purgatory,
                clock,
                page_cache_reader,
                timeout_ms=timeout_ms,
                load_buffer_bytes=config.get_int("transaction.state.log.load.buffer.size"),
            ),
            partition_count=self._partition_count,
            markers=self.markers,
            new_producer_id=self.new_producer_id,
            clock=clock,
        )
        self.add_partitions_manager = AddPartitionsToTxnManager(
            config.broker_id, cache, inter_broker, self.coordinator, replicas, clock
        )
        purgatory.on_leader.append(self._on_leader)
        purgatory.on_not_leader.append(self._on_not_leader)

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Before the first request. Raises StoreError."""
        self._partitions = await stored_partitions(self._store, TRANSACTIONS_TOPIC)
        self._settings.on_change.append(self._settings_changed)
        self._settings_changed(frozenset({VERIFICATION}))
        self.coordinator.start()

    async def stop(self) -> None:
        await self.markers.stop()
        await self.add_partitions_manager.stop()
        await self.coordinator.stop()
        await self._producer_ids.stop()

    def _settings_changed(self, names: frozenset[str]) -> None:
        if VERIFICATION in names:
            self._replicas.verify_transactions(self._config.get_bool(VERIFICATION))

    def _on_leader(self, topic: str, partition: int) -> None:
        if topic == TRANSACTIONS_TOPIC:
            self.coordinator.load(partition)

    def _on_not_leader(self, topic: str, partition: int) -> None:
        if topic == TRANSACTIONS_TOPIC:
            self.coordinator.unload(partition)

    def _partition_count(self) -> int:
        """The number of partitions of `__transaction_state` when first seen; later changes have no effect. Of
        the settings while the topic does not exist."""
        if self._partitions is None:
            found = self._cache.partitions(TRANSACTIONS_TOPIC)
            if not found:
                return self._config.get_int("transaction.state.log.num.partitions")
            self._partitions = len(found)
        return self._partitions

    # -- producer ids --------------------------------------------------------------------------------

    async def new_producer_id(self) -> int:
        """A producer id that was never used. Raises NoProducerId if the controller allocates none in time."""
        try:
            return await self._producer_ids.next(_PRODUCER_ID_WAIT_S)
        except NoBlock as problem:
            raise NoProducerId from problem

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        request = AllocateProducerIdsRequest(
            broker_id=self._config.broker_id, broker_epoch=self._broker_epoch()
        )
        response = await self._channel.allocate_producer_ids(request)
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code))
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)
