"""What a broker does for transactions, wired: the coordinator over its replicas of `__transaction_state`, the
markers it sends, the verification of what producers write, and the ids that it gives them.

Called by ottla.server.assembly.broker's start. Leadership of a partition of that topic, as the purgatory
passes it on from replication, loads and unloads the transactions in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.coordinators.config import TransactionConfig
from ottla.coordinators.transactions.coordinator import TransactionCoordinator
from ottla.coordinators.transactions.interfaces import NoProducerId
from ottla.metadata.cache import MetadataCache
from ottla.metadata.dynamic_broker_config import DynamicBrokerConfig
from ottla.metadata.producer_ids import NoBlock, ProducerIdBlock, ProducerIds
from ottla.metadata.store import MetadataStore
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import AllocateProducerIdsRequest
from ottla.protocol.topic_names import TRANSACTIONS_TOPIC
from ottla.replication.manager import ReplicaManager
from ottla.server.coordination.group_log import ReplicatedLog, stored_partitions
from ottla.server.coordination.transaction_markers import MarkerQueues, MarkerWriter
from ottla.server.coordination.transaction_verification import Verifier
from ottla.server.dispatch.purgatory import Purgatory
from ottla.server.inter_broker.controller_channel import ControllerChannel
from ottla.server.logs.cold_reads import ColdReads
from ottla.wire.inter_broker import InterBrokerClient

# Short of every client's request time-out: it is better told to come again.
_PRODUCER_ID_WAIT_S: Final = 2.0
VERIFICATION: Final = "transaction.partition.verification.enable"


class Transactions:
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
        cold_reads: ColdReads,
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
        self._producer_ids = ProducerIds(self._ask_for_ids)
        self.writer = MarkerWriter(replicas, purgatory, clock, timeout_ms=timeout_ms)
        self.markers = MarkerQueues(config.broker_id, cache, inter_broker, self.writer)
        self.coordinator = TransactionCoordinator(
            config=TransactionConfig.read(config.get_int),
            log=ReplicatedLog(
                TRANSACTIONS_TOPIC,
                replicas,
                purgatory,
                clock,
                cold_reads,
                timeout_ms=timeout_ms,
                load_buffer_bytes=config.get_int("transaction.state.log.load.buffer.size"),
            ),
            partition_count=self._partition_count,
            markers=self.markers,
            new_producer_id=self.new_producer_id,
            clock=clock,
        )
        self.verifier = Verifier(config.broker_id, cache, inter_broker, self.coordinator, replicas, clock)
        purgatory.on_leader.append(self._leads)
        purgatory.on_not_leader.append(self._leads_no_more)

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Before the first request. Raises StoreError."""
        self._partitions = await stored_partitions(self._store, TRANSACTIONS_TOPIC)
        self._settings.on_change.append(self._settings_changed)
        self._settings_changed(frozenset({VERIFICATION}))
        self.coordinator.start()

    async def stop(self) -> None:
        await self.markers.stop()
        await self.verifier.stop()
        await self.coordinator.stop()

    def _settings_changed(self, names: frozenset[str]) -> None:
        if VERIFICATION in names:
            self._replicas.verify_transactions(self._config.get_bool(VERIFICATION))

    def _leads(self, topic: str, partition: int) -> None:
        if topic == TRANSACTIONS_TOPIC:
            self.coordinator.load(partition)

    def _leads_no_more(self, topic: str, partition: int) -> None:
        if topic == TRANSACTIONS_TOPIC:
            self.coordinator.unload(partition)

    def _partition_count(self) -> int:
        """How many partitions transactional ids are spread over: those that the topic has when it is first
        seen, whatever is set, or added, later."""
        if self._partitions is None:
            found = self._cache.partitions(TRANSACTIONS_TOPIC)
            if not found:
                return self._config.get_int("transaction.state.log.num.partitions")
            self._partitions = len(found)
        return self._partitions

    # -- producer ids --------------------------------------------------------------------------------

    async def new_producer_id(self) -> int:
        """One that nobody had before. Raises NoProducerId when the controller brings none in time."""
        try:
            return await self._producer_ids.next(_PRODUCER_ID_WAIT_S)
        except NoBlock as problem:
            raise NoProducerId from problem

    async def _ask_for_ids(self) -> ProducerIdBlock:
        request = AllocateProducerIdsRequest(
            broker_id=self._config.broker_id, broker_epoch=self._broker_epoch()
        )
        response = await self._channel.allocate_producer_ids(request)
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code))
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)
