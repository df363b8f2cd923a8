"""The controller's shell: election, watches, and the entry points of the requests only a controller serves.

Every broker runs one; the one that holds /controller is active. Called by the broker (start, stop) and by
the server's handlers (the entry points). What to do is decided in the pure modules; here is when.

Invariants: at most one `Term` at a time, and every decision of it runs under its lock; a write that fails
ends the term, and a new election begins with a fresh look at the store; entry points raise nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from ottla.controller import (
    admin_nodes,
    features,
    membership,
    partition_requests,
    producer_ids,
    reactions,
    topic_requests,
)
from ottla.controller.channels import Channels
from ottla.controller.effects import Effects
from ottla.controller.office import NotController
from ottla.controller.state import ClusterState
from ottla.controller.term import Term
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
from ottla.protocol import messages as m
from ottla.protocol.types import Message
from ottla.wire.inter_broker import InterBrokerClient

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_DELAY_S: Final = 1.0
HOUSEKEEPING_INTERVAL_S: Final = 5.0
FIRST_REBALANCE_S: Final = 5.0
"""So long after its election a controller looks for leaders that are not the preferred ones, as in Kafka."""
STOP_TIMEOUT_S: Final = 5.0


class Controller:
    """`clock` gives wall time in ms; `inter_broker` makes the connections to the brokers."""

    def __init__(
        self,
        *,
        broker_id: int,
        store: MetadataStore,
        config: BrokerConfig,
        clock: Callable[[], int],
        inter_broker: InterBrokerClient,
        random_below: Callable[[int], int] = random.randrange,
        create_topic_policy: Policy | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.config = config
        self.random_below = random_below
        self.create_topic_policy = create_topic_policy
        self._store = store
        self._clock = clock
        self._inter_broker = inter_broker
        self._broker_epoch = -1
        self._controller_id: int | None = None
        self._term: Term | None = None
        self._eligible = False
        self._stands_again_s = 0.0
        self._election_lock = asyncio.Lock()
        self._cancels: list[Cancel] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._reasons: dict[str, None] = {}
        self._awake = asyncio.Event()
        self._next_rebalance: asyncio.TimerHandle | None = None
        self._handlers: dict[str, Callable[[], Awaitable[None]]] = {
            "election": self._elect,
            "brokers": partial(self._decide, reactions.brokers_changed),
            "topics": partial(self._decide, reactions.topics_changed),
            "partitions": partial(self._decide, reactions.partitions_changed),
            "deletions": partial(self._decide, reactions.deletions_requested),
            "configs": partial(self._decide, reactions.configs_changed),
            "stopped": partial(self._decide, reactions.replicas_stopped),
            "failed": partial(self._decide, reactions.replicas_failed),
            "log dirs": partial(self._decide, reactions.log_dirs_failed),
            "moves": partial(self._decide, admin_nodes.reassignments_requested),
            "preferred": partial(self._decide, admin_nodes.preferred_leaders_requested),
            "rebalance": self._rebalance_and_again,
            "housekeeping": partial(self._decide, reactions.housekeeping),
        }

    @property
    def is_active(self) -> bool:
        return self._term is not None

    @property
    def state(self) -> ClusterState | None:
        """What it knows of the cluster, to look at and not to change; None when it is not the controller."""
        return None if self._term is None else self._term.state

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's current term; -1 when it is not the controller."""
        return self._term.state.controller_epoch if self._term is not None else -1

    @property
    def controller_id(self) -> int | None:
        """Whom /controller names, as far as is known here."""
        return self._controller_id

    # Life.

    async def start(self, broker_epoch: int) -> None:
        """Stand for election. Called after each registration: at start, and after a lost session."""
        self._broker_epoch = broker_epoch
        self._eligible = True
        if not self._tasks:
            watches = [
                (self._store.watch_data, znodes.CONTROLLER, "election"),
                (self._store.watch_children, znodes.BROKER_IDS, "brokers"),
                (self._store.watch_children, znodes.TOPICS, "topics"),
                (self._store.watch_children, znodes.DELETE_TOPICS, "deletions"),
                (self._store.watch_children, znodes.CONFIG_CHANGES, "configs"),
                (self._store.watch_children, znodes.LOG_DIR_EVENTS, "log dirs"),
                (self._store.watch_data, znodes.REASSIGN_PARTITIONS, "moves"),
                (self._store.watch_data, znodes.PREFERRED_ELECTION, "preferred"),
            ]
            for watch, path, reason in watches:
                self._cancels.append(await watch(path, partial(self._wake, reason)))
            self._cancels.append(self._store.on_session_expired(self._on_session_expired))
            self._tasks = [
                asyncio.ensure_future(self._work()),
                asyncio.ensure_future(self._every_so_often()),
            ]
        try:
            await self._elect()
        except StoreUnavailable as error:
            log.warning("no election yet, the store does not answer: %s", error)
            self._wake("election")

    async def stop(self) -> None:
        """Leave office if in it, so that another broker takes over at once, and stand no more."""
        self._eligible = False
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        term = self._term
        if term is not None:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S), term.lock:
                    await self._resign(term, "this broker stops")
            except TimeoutError:
                log.warning("the store does not answer: /controller ends with the session")
                self._deactivate()

    def _on_session_expired(self) -> None:
        # /controller went with the session. Stand again only when the broker has registered anew.
        self._eligible = False
        self._deactivate()

    def _deactivate(self) -> None:
        term, self._term = self._term, None
        self._cancel_rebalance()
        if term is not None:
            log.info("no longer the controller (epoch %d)", term.state.controller_epoch)
            term.close()

    async def _resign(self, term: Term, reason: str) -> None:
        """End the term, and remove /controller if it is still this term's."""
        log.info("resigning as controller: %s", reason)
        # Others first: what made this one fail may well make it fail again.
        self._stands_again_s = asyncio.get_running_loop().time() + RETRY_DELAY_S
        if self._term is term:
            self._deactivate()
        try:
            await term.fenced([Delete(znodes.CONTROLLER)])
        except StoreError as error:
            log.info("/controller is left as it is: %s", error)
        self._wake("election")

    # Election.

    async def _elect(self) -> None:
        """Find out who is the controller; become it if nobody is."""
        async with self._election_lock:
            while True:
                found = await self._store.get(znodes.CONTROLLER)
                if found is None:
                    self._controller_id = None
                    self._deactivate()
                    if not self._eligible or await self._try_to_be_elected():
                        return
                    continue
                self._controller_id = znodes.decode_controller(found[0])
                mine = found[1].ephemeral_owner == self._store.session_id
                if mine and self._term is None:
                    # Elected without having heard of it, or unable to take office: start over.
                    await self._remove_own_node(found[1].version)
                    continue
                if not mine:
                    self._deactivate()
                return

    async def _remove_own_node(self, version: int) -> None:
        try:
            await self._store.delete(znodes.CONTROLLER, version)
        except (NoNode, BadVersion):
            return

    async def _try_to_be_elected(self) -> bool:
        """One attempt. True: done for now. False: somebody was faster, or the epoch moved; look again."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._stands_again_s:
            loop.call_at(self._stands_again_s, self._wake, "election")
            return True
        found = await self._store.get(znodes.CONTROLLER_EPOCH)
        if found is None:
            try:
                await self._store.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
            except NodeExists:
                log.debug("another broker has created the controller epoch first")
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
            log.info("not elected: %s", conflict)
            return False
        self._controller_id = self.broker_id
        await self._take_office(epoch, version + 1)
        return True

    async def _take_office(self, epoch: int, epoch_version: int) -> None:
        log.info("elected controller, epoch %d", epoch)
        began_s = asyncio.get_running_loop().time()
        listener = self.config.inter_broker_listener
        timeout_s = self.config.get_int("controller.socket.timeout.ms") / 1000
        term = Term(
            ClusterState(self.broker_id, epoch),
            self._store,
            epoch_version,
            listener=listener,
            unclean_by_default=lambda: self.config.get_bool("unclean.leader.election.enable"),
            make_channels=lambda on_response: Channels(self._inter_broker, listener, on_response, timeout_s),
            wake=self._wake,
            spoken=self.config.inter_broker_version,
        )
        try:
            async with term.lock:
                await term.load()
                await term.ensure_feature_node()
                effects = Effects()
                if not self.config["delete.topic.enable"]:
                    term.state.deletions.clear()
                membership.take_office(term.state, effects)
                await term.carry_out(effects)
                if not self._eligible:
                    raise StoreUnavailable(znodes.CONTROLLER, "the session was lost meanwhile")
                self._term = term
                log.info(
                    "in office, with %d partitions, after %.0f ms and %d multis",
                    len(term.state.leaders),
                    (asyncio.get_running_loop().time() - began_s) * 1000,
                    len(effects.multis()),
                )
        except Exception as error:
            # Also what nobody foresaw: an office that is held and not filled would stop the cluster.
            expected = isinstance(error, StoreConflict | StoreUnavailable)
            log.log(logging.WARNING if expected else logging.ERROR, "could not take office", exc_info=True)
            term.close()
            await self._resign(term, repr(error))
            return
        except BaseException:
            term.close()
            raise
        self._rebalance_in(FIRST_REBALANCE_S)
        # What came between the reading and the first watch event that finds us in office.
        for reason in ("brokers", "topics", "deletions", "log dirs", "moves", "preferred"):
            self._wake(reason)

    # Decisions.

    async def in_office(self, work: Callable[[Term], Awaitable[T]]) -> T:
        """Run `work` under the term's lock. Raises NotController; a failed write ends the term."""
        term = self._term
        if term is None:
            raise NotController
        # Shielded: a caller that gives up must not leave a decision half carried out.
        return await asyncio.shield(asyncio.ensure_future(self._locked(term, work)))

    async def _locked(self, term: Term, work: Callable[[Term], Awaitable[T]]) -> T:
        async with term.lock:
            if term.closed:
                raise NotController
            try:
                return await work(term)
            except (StoreConflict, StoreUnavailable) as error:
                await self._resign(term, str(error))
                raise NotController from error
            except Exception as error:
                # The state may be ahead of the store: nothing but a new look at the store mends that.
                log.exception("a controller decision failed")
                await self._resign(term, repr(error))
                raise

    async def _decide(self, reaction: Callable[[Term, BrokerConfig], Awaitable[None]]) -> None:
        if self._term is not None:
            await self.in_office(lambda term: reaction(term, self.config))

    async def rebalance(self) -> None:
        """Hand partitions back to their preferred leaders now, where the imbalance is too great."""
        await self._decide(reactions.rebalance)

    async def _rebalance_and_again(self) -> None:
        try:
            await self.rebalance()
        finally:
            if self._term is not None:
                self._rebalance_in(self.config.get_int("leader.imbalance.check.interval.seconds"))

    def _cancel_rebalance(self) -> None:
        if self._next_rebalance is not None:
            self._next_rebalance.cancel()

    def _rebalance_in(self, delay_s: float) -> None:
        self._cancel_rebalance()
        if self.config.get_bool("auto.leader.rebalance.enable"):
            loop = asyncio.get_running_loop()
            self._next_rebalance = loop.call_later(delay_s, self._wake, "rebalance")

    def unclean_default_changed(self) -> None:
        """unclean.leader.election.enable has another value in this broker's settings."""
        self._wake("configs")

    # Being woken.

    def _wake(self, reason: str) -> None:
        self._reasons[reason] = None
        self._awake.set()

    async def _work(self) -> None:
        """React to watches and answers, one reason at a time; many wake-ups for one reason are one."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            while self._reasons:
                reason = next(iter(self._reasons))
                del self._reasons[reason]
                try:
                    await self._handlers[reason]()
                except NotController:
                    log.debug("%s: not the controller any more", reason)
                except StoreUnavailable as error:
                    log.warning("%s: the store does not answer, trying again: %s", reason, error)
                    asyncio.get_running_loop().call_later(RETRY_DELAY_S, self._wake, reason)
                except Exception:
                    log.exception("reacting to %s failed", reason)

    async def _every_so_often(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)
            if self._term is not None:
                self._wake("housekeeping")

    # Entry points.

    async def create_topics(
        self,
        request: m.CreateTopicsRequest,
        version: int | None = None,
        charge: Charge = topic_requests.nobody_pays,
    ) -> m.CreateTopicsResponse:
        return await topic_requests.create_topics(self, request, charge)

    async def delete_topics(
        self,
        request: m.DeleteTopicsRequest,
        version: int | None = None,
        charge: Charge = topic_requests.nobody_pays,
    ) -> m.DeleteTopicsResponse:
        return await topic_requests.delete_topics(self, request, _or_latest(request, version), charge)

    async def create_partitions(
        self,
        request: m.CreatePartitionsRequest,
        version: int | None = None,
        charge: Charge = topic_requests.nobody_pays,
    ) -> m.CreatePartitionsResponse:
        return await topic_requests.create_partitions(self, request, charge)

    async def alter_partition_reassignments(
        self, request: m.AlterPartitionReassignmentsRequest, version: int | None = None
    ) -> m.AlterPartitionReassignmentsResponse:
        return await partition_requests.alter_partition_reassignments(self, request)

    async def list_partition_reassignments(
        self, request: m.ListPartitionReassignmentsRequest, version: int | None = None
    ) -> m.ListPartitionReassignmentsResponse:
        return await partition_requests.list_partition_reassignments(self, request)

    async def elect_leaders(
        self, request: m.ElectLeadersRequest, version: int | None = None
    ) -> m.ElectLeadersResponse:
        return await partition_requests.elect_leaders(self, request)

    async def alter_partition(
        self, request: m.AlterPartitionRequest, version: int | None = None
    ) -> m.AlterPartitionResponse:
        return await partition_requests.alter_partition(self, request, _or_latest(request, version))

    async def controlled_shutdown(
        self, request: m.ControlledShutdownRequest, version: int | None = None
    ) -> m.ControlledShutdownResponse:
        return await partition_requests.controlled_shutdown(self, request)

    async def update_features(
        self, request: m.UpdateFeaturesRequest, version: int | None = None
    ) -> m.UpdateFeaturesResponse:
        return await features.update_features(self, request, _or_latest(request, version))

    async def allocate_producer_ids(
        self, request: m.AllocateProducerIdsRequest
    ) -> m.AllocateProducerIdsResponse:
        return await producer_ids.allocate_producer_ids(self, request)


def _or_latest(request: Message, version: int | None) -> int:
    return type(request).max_version if version is None else version
