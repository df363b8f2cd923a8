"""The controller of a broker (KafkaController): election, watches, event queue, and request entry points.

Every broker runs one; the broker that owns /controller is the active controller. Called by the broker (start,
stop) and by the server's request handlers (entry points). The pure modules of this package make the
decisions.

Invariants: at most one `ActiveController` exists at a time, and its decisions run one at a time under its
lock. A failed write makes it resign, and the next election loads the state from the store again. Entry points
raise nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final, TypeVar

from ottla.controller import (
    admin_nodes,
    broker_changes,
    cluster_requests,
    event_handlers,
    partition_requests,
    topic_requests,
)
from ottla.controller.active_controller import ActiveController, NotController
from ottla.controller.channels import Channels
from ottla.controller.context import ControllerContext
from ottla.controller.effects import Effects
from ottla.controller.topic_requests import Charge
from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.policies import Policy
from ottla.metadata.store import (
    BadVersion,
    Cancel,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    SetData,
    StoreConflict,
    StoreError,
    StoreUnavailable,
)
from ottla.ports.tasks import TaskSet
from ottla.protocol import messages as m
from ottla.protocol.types import Message
from ottla.wire.inter_broker import InterBrokerClient

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_DELAY_S: Final = 1.0
MAINTENANCE_INTERVAL_S: Final = 5.0
FIRST_REBALANCE_S: Final = 5.0
"""The delay between the election and the first preferred leader rebalance, as in Kafka."""
STOP_TIMEOUT_S: Final = 5.0


class Controller:
    """One broker's part in controller elections, and the active controller while this broker is elected.

    `clock` returns wall time in ms; `inter_broker` connects to the brokers.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        store: MetadataStore,
        config: BrokerConfig,
        clock: Callable[[], int],
        random: Random,
        inter_broker: InterBrokerClient,
        create_topic_policy: Policy | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.config = config
        self.random = random
        self.create_topic_policy = create_topic_policy
        self._store = store
        self._clock = clock
        self._inter_broker = inter_broker
        self._broker_epoch = -1
        self._controller_id: int | None = None
        self._active: ActiveController | None = None
        self._eligible = False
        self._election_backoff_until_s = 0.0
        self._election_lock = asyncio.Lock()
        self._cancels: list[Cancel] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._events: dict[str, None] = {}
        """The queue of events, named as Kafka's ControllerEvents, each at most once."""
        self._has_events = asyncio.Event()
        self._next_rebalance: asyncio.TimerHandle | None = None
        self._delayed: dict[str, asyncio.TimerHandle] = {}
        """Events that are queued later."""
        self._requests = TaskSet()
        self._handlers: dict[str, Callable[[], Awaitable[None]]] = {
            "ControllerChange": self._elect,
            "BrokerChange": partial(self._handle, event_handlers.brokers_changed),
            "TopicChange": partial(self._handle, event_handlers.topics_changed),
            "PartitionModifications": partial(self._handle, event_handlers.partitions_changed),
            "TopicDeletion": partial(self._handle, event_handlers.deletions_requested),
            "ConfigChange": partial(self._handle, event_handlers.configs_changed),
            "StopReplicaResponse": partial(self._handle, event_handlers.replicas_stopped),
            "LeaderAndIsrResponse": partial(self._handle, event_handlers.replicas_failed),
            "LogDirEventNotification": partial(self._handle, event_handlers.log_dirs_failed),
            "PartitionReassignment": partial(self._handle, admin_nodes.reassignments_requested),
            "PreferredReplicaElection": partial(self._handle, admin_nodes.preferred_leaders_requested),
            "AutoPreferredReplicaLeaderElection": self._rebalance_periodically,
            "Maintenance": partial(self._handle, event_handlers.maintain),
        }

    @property
    def is_active(self) -> bool:
        return self._active is not None

    @property
    def context(self) -> ControllerContext | None:
        """The controller's state, read-only for callers; None when this broker is not the controller."""
        return None if self._active is None else self._active.context

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's election; -1 when it is not the controller."""
        return self._active.context.controller_epoch if self._active is not None else -1

    @property
    def controller_id(self) -> int | None:
        """The broker id in /controller, as last read; None if there was no controller."""
        return self._controller_id

    # Start and stop.

    async def start(self, broker_epoch: int) -> None:
        """Take part in elections. Called after each registration: at start, and after a lost session."""
        self._broker_epoch = broker_epoch
        self._eligible = True
        if not self._tasks:
            watches = [
                (self._store.watch_data, znodes.CONTROLLER, "ControllerChange"),
                (self._store.watch_children, znodes.BROKER_IDS, "BrokerChange"),
                (self._store.watch_children, znodes.TOPICS, "TopicChange"),
                (self._store.watch_children, znodes.DELETE_TOPICS, "TopicDeletion"),
                (self._store.watch_children, znodes.CONFIG_CHANGES, "ConfigChange"),
                (self._store.watch_children, znodes.LOG_DIR_EVENTS, "LogDirEventNotification"),
                (self._store.watch_data, znodes.REASSIGN_PARTITIONS, "PartitionReassignment"),
                (self._store.watch_data, znodes.PREFERRED_ELECTION, "PreferredReplicaElection"),
            ]
            for watch, path, event in watches:
                self._cancels.append(await watch(path, partial(self._enqueue, event)))
            self._cancels.append(self._store.on_session_expired(self._on_session_expired))
            self._tasks = [
                asyncio.ensure_future(self._process_events()),
                asyncio.ensure_future(self._enqueue_maintenance()),
            ]
        try:
            await self._elect()
        except StoreUnavailable as error:
            log.warning("Controller election is delayed, the metadata store is unavailable: %s", error)
            self._enqueue("ControllerChange")

    async def stop(self) -> None:
        """Resign if active, so that another broker is elected at once, and leave further elections."""
        self._eligible = False
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        active = self._active
        if active is not None:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    async with active.lock:
                        await self._resign(active, "this broker is shutting down")
                    await self._requests.wait()  # for the lock: they end with NotController
            except TimeoutError:
                log.warning("The metadata store is unavailable: /controller is removed with the session")
                self._deactivate()
        await self._requests.stop()
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()

    def _on_session_expired(self) -> None:
        # /controller is ephemeral. This broker takes part in elections again once it is registered again.
        self._eligible = False
        self._deactivate()

    def _deactivate(self) -> None:
        active, self._active = self._active, None
        self._cancel_rebalance()
        if active is not None:
            log.info("Resigned as the controller, epoch %d", active.context.controller_epoch)
            active.close()

    async def _resign(self, active: ActiveController, reason: str) -> None:
        """Stop being the controller, and delete /controller if it is still this election's."""
        log.info("Resigning as the controller: %s", reason)
        # Other brokers get the first chance: the cause of the failure may still be present here.
        self._election_backoff_until_s = asyncio.get_running_loop().time() + RETRY_DELAY_S
        if self._active is active:
            self._deactivate()
        try:
            await active.fenced_multi([Delete(znodes.CONTROLLER)])
        except StoreError as error:
            log.info("/controller is not deleted: %s", error)
        self._enqueue("ControllerChange")

    # Election.

    async def _elect(self) -> None:
        """Read the current controller from the store, and try to become it if there is none."""
        async with self._election_lock:
            while True:
                found = await self._store.get(znodes.CONTROLLER)
                if found is None:
                    self._controller_id = None
                    self._deactivate()
                    if not self._eligible or await self._try_to_become_controller():
                        return
                    continue
                self._controller_id = znodes.decode_controller(found[0])
                is_own = found[1].ephemeral_owner == self._store.session_id
                if is_own and self._active is None:
                    # The response to the election was lost, or loading failed: start over.
                    await self._remove_own_node(found[1].version)
                    continue
                if not is_own:
                    self._deactivate()
                return

    async def _remove_own_node(self, version: int) -> None:
        try:
            await self._store.delete(znodes.CONTROLLER, version)
        except (NoNode, BadVersion):
            return

    async def _try_to_become_controller(self) -> bool:
        """One attempt. False if another broker was elected or changed the epoch: read /controller again."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._election_backoff_until_s:
            self._enqueue_at(self._election_backoff_until_s, "ControllerChange")
            return True
        found = await self._store.get(znodes.CONTROLLER_EPOCH)
        if found is None:
            try:
                await self._store.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
            except NodeExists:
                log.debug("Another broker created the controller epoch node first")
            return False
        epoch, version = znodes.decode_controller_epoch(found[0]) + 1, found[1].version
        try:
            await self._store.multi(
                [
                    Create(
                        znodes.CONTROLLER,
                        znodes.encode_controller(self.broker_id, self._clock()),
                        ephemeral=True,
                    ),
                    SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch), version),
                ]
            )
        except StoreConflict as conflict:
            log.info("Another broker was elected as the controller: %s", conflict)
            return False
        self._controller_id = self.broker_id
        await self._on_elected(epoch, version + 1)
        return True

    async def _on_elected(self, epoch: int, epoch_version: int) -> None:
        log.info("%d successfully elected as the controller. Epoch incremented to %d", self.broker_id, epoch)
        began_s = asyncio.get_running_loop().time()
        listener = self.config.inter_broker_listener
        timeout_s = self.config.get_int("controller.socket.timeout.ms") / 1000
        active = ActiveController(
            ControllerContext(self.broker_id, epoch),
            self._store,
            epoch_version,
            listener=listener,
            unclean_by_default=lambda: self.config.get_bool("unclean.leader.election.enable"),
            make_channels=lambda on_response: Channels(self._inter_broker, listener, on_response, timeout_s),
            enqueue=self._enqueue,
            random=self.random,
            inter_broker_protocol_version=self.config.inter_broker_version,
        )
        try:
            async with active.lock:
                await active.load()
                await active.ensure_feature_node()
                effects = Effects()
                if not self.config["delete.topic.enable"]:
                    active.context.deletions.clear()
                broker_changes.on_elected(active.context, effects)
                await active.apply(effects)
                if not self._eligible:
                    raise StoreUnavailable(znodes.CONTROLLER, "the session expired during the election")
                self._active = active
                log.info(
                    "Ready to serve as the new controller with epoch %d: %d partitions, %.0f ms, %d multis",
                    epoch,
                    len(active.context.leaders),
                    (asyncio.get_running_loop().time() - began_s) * 1000,
                    len(effects.multis()),
                )
        except Exception as error:
            # Any exception: a /controller node without an active controller would stop the cluster.
            expected = isinstance(error, StoreConflict | StoreUnavailable)
            level = logging.WARNING if expected else logging.ERROR
            log.log(level, "Error while electing or becoming controller", exc_info=True)
            active.close()
            await self._resign(active, repr(error))
            return
        except BaseException:
            active.close()
            raise
        self._schedule_rebalance(FIRST_REBALANCE_S)
        # Changes between the loading and now: their watch events were ignored.
        for event in (
            "BrokerChange",
            "TopicChange",
            "TopicDeletion",
            "LogDirEventNotification",
            "PartitionReassignment",
            "PreferredReplicaElection",
        ):
            self._enqueue(event)

    # Decisions.

    async def run_as_controller(self, work: Callable[[ActiveController], Awaitable[T]]) -> T:
        """Run `work` with the active controller, under its lock. Raises NotController, also when a write of
        `work` fails, which makes the controller resign."""
        active = self._active
        if active is None:
            raise NotController
        # Shielded: a decision is completed even if its caller is cancelled. Its error is dropped then.
        decision = self._requests.start(self._run_locked(active, work))
        decision.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(decision)

    async def _run_locked(
        self, active: ActiveController, work: Callable[[ActiveController], Awaitable[T]]
    ) -> T:
        async with active.lock:
            if active.closed:
                raise NotController
            try:
                return await work(active)
            except (StoreConflict, StoreUnavailable) as error:
                await self._resign(active, str(error))
                raise NotController from error
            except Exception as error:
                # The state may be ahead of the store: the next election loads it from the store.
                log.exception("A decision of the controller failed")
                await self._resign(active, repr(error))
                raise

    async def _handle(self, handler: Callable[[ActiveController, BrokerConfig], Awaitable[None]]) -> None:
        if self._active is not None:
            await self.run_as_controller(lambda active: handler(active, self.config))

    async def rebalance(self) -> None:
        """Elect preferred leaders now on brokers above leader.imbalance.per.broker.percentage."""
        await self._handle(event_handlers.rebalance)

    async def _rebalance_periodically(self) -> None:
        try:
            await self.rebalance()
        finally:
            if self._active is not None:
                self._schedule_rebalance(self.config.get_int("leader.imbalance.check.interval.seconds"))

    def _cancel_rebalance(self) -> None:
        if self._next_rebalance is not None:
            self._next_rebalance.cancel()

    def _schedule_rebalance(self, delay_s: float) -> None:
        self._cancel_rebalance()
        if self.config.get_bool("auto.leader.rebalance.enable"):
            loop = asyncio.get_running_loop()
            event = "AutoPreferredReplicaLeaderElection"
            self._next_rebalance = loop.call_later(delay_s, self._enqueue, event)

    def unclean_default_changed(self) -> None:
        """Call when unclean.leader.election.enable has changed in this broker's configuration."""
        self._enqueue("ConfigChange")

    # Events.

    def _enqueue(self, event: str) -> None:
        self._events[event] = None
        self._has_events.set()

    def _enqueue_at(self, when_s: float, event: str) -> None:
        delayed = self._delayed.get(event)
        if delayed is not None:
            if delayed.when() <= when_s:
                return
            delayed.cancel()

        def enqueue() -> None:
            del self._delayed[event]
            self._enqueue(event)

        self._delayed[event] = asyncio.get_running_loop().call_at(when_s, enqueue)

    async def _process_events(self) -> None:
        """Handle the queued events one at a time. Repeated events of one kind are handled as one."""
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            while self._events:
                event = next(iter(self._events))
                del self._events[event]
                try:
                    await self._handlers[event]()
                except NotController:
                    log.debug("%s: this broker is not the controller any more", event)
                except StoreUnavailable as error:
                    log.warning("%s: the metadata store is unavailable, retrying: %s", event, error)
                    self._enqueue_at(asyncio.get_running_loop().time() + RETRY_DELAY_S, event)
                except Exception:
                    log.exception("Error processing event %s", event)

    async def _enqueue_maintenance(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)
            if self._active is not None:
                self._enqueue("Maintenance")

    # Entry points.

    async def create_topics(
        self,
        request: m.CreateTopicsRequest,
        charge: Charge = topic_requests.no_quota,
    ) -> m.CreateTopicsResponse:
        return await topic_requests.create_topics(self, request, charge)

    async def delete_topics(
        self,
        request: m.DeleteTopicsRequest,
        version: int | None = None,
        charge: Charge = topic_requests.no_quota,
    ) -> m.DeleteTopicsResponse:
        return await topic_requests.delete_topics(self, request, _or_latest(request, version), charge)

    async def create_partitions(
        self,
        request: m.CreatePartitionsRequest,
        charge: Charge = topic_requests.no_quota,
    ) -> m.CreatePartitionsResponse:
        return await topic_requests.create_partitions(self, request, charge)

    async def alter_partition_reassignments(
        self, request: m.AlterPartitionReassignmentsRequest
    ) -> m.AlterPartitionReassignmentsResponse:
        return await partition_requests.alter_partition_reassignments(self, request)

    async def list_partition_reassignments(
        self, request: m.ListPartitionReassignmentsRequest
    ) -> m.ListPartitionReassignmentsResponse:
        return await partition_requests.list_partition_reassignments(self, request)

    async def elect_leaders(self, request: m.ElectLeadersRequest) -> m.ElectLeadersResponse:
        return await partition_requests.elect_leaders(self, request)

    async def alter_partition(
        self, request: m.AlterPartitionRequest, version: int | None = None
    ) -> m.AlterPartitionResponse:
        return await partition_requests.alter_partition(self, request, _or_latest(request, version))

    async def controlled_shutdown(self, request: m.ControlledShutdownRequest) -> m.ControlledShutdownResponse:
        return await cluster_requests.controlled_shutdown(self, request)

    async def update_features(
        self, request: m.UpdateFeaturesRequest, version: int | None = None
    ) -> m.UpdateFeaturesResponse:
        return await cluster_requests.update_features(self, request, _or_latest(request, version))

    async def allocate_producer_ids(
        self, request: m.AllocateProducerIdsRequest
    ) -> m.AllocateProducerIdsResponse:
        return await cluster_requests.allocate_producer_ids(self, request)


def _or_latest(request: Message, version: int | None) -> int:
    return type(request).max_version if version is None else version
