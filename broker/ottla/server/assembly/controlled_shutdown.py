"""A broker's leave-taking: the controller is asked to move its leaders off before it stops (KIP-4, KIP-47).

Called by ottla.server.assembly.broker's `stop`, while everything still serves. Nothing is raised: a broker
that cannot take its leave stops as it is, and the controller finds out from its session.
"""

from __future__ import annotations

import asyncio
import logging

from ottla.controller.controller import Controller
from ottla.metadata import znodes
from ottla.metadata.config import BrokerConfig
from ottla.metadata.store import MetadataStore, StoreError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import ControlledShutdownRequest, ControlledShutdownResponse
from ottla.server.inter_broker.controller_channel import ControllerChannel
from ottla.wire.connection import UnsupportedApi

log = logging.getLogger("ottla.broker")

CONTROLLER_POLL_S = 0.1

WITHOUT_STORE_S = 3.0
"""How long to try where the metadata store does not answer: a controller can move no leader without it."""


class _StoreGone(Exception):
    """Nobody is left who could move a leader."""


class ControlledShutdown:
    def __init__(
        self, config: BrokerConfig, channel: ControllerChannel, controller: Controller, store: MetadataStore
    ) -> None:
        self._config = config
        self._channel = channel
        self._controller = controller
        self._store = store

    async def run(self, broker_epoch: int) -> None:
        """Ask the controller to move leaders off, `controlled.shutdown.max.retries` times at most."""
        retries = self._config.get_int("controlled.shutdown.max.retries")
        for attempt in range(retries):
            if attempt:
                await self._before_next_try()
            others = await self._others()
            if others == set():
                log.info("controlled shutdown: no other broker is left to lead anything")
                return
            request = ControlledShutdownRequest(broker_id=self._config.broker_id, broker_epoch=broker_epoch)
            try:
                response = await self._ask(request)
            except _StoreGone:
                log.warning("controlled shutdown: neither controller nor metadata store answers, stopping")
                return
            except (OSError, TimeoutError, KafkaError, StoreError, UnsupportedApi) as e:
                log.warning("controlled shutdown did not reach the controller: %s", e or type(e).__name__)
                if others is None:
                    log.warning("controlled shutdown: the metadata store does not answer either, stopping")
                    return
                continue
            if response.error_code == ErrorCode.NONE and not response.remaining_partitions:
                log.info("controlled shutdown: all leaders have moved")
                return
            log.info(
                "controlled shutdown: %s, %d partitions still led here",
                ErrorCode.of(response.error_code).name,
                len(response.remaining_partitions),
            )
        log.warning("controlled shutdown gave up after %d tries: stopping as it is", retries)

    async def _ask(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """Wait for the controller's answer as long as the metadata store answers."""
        asking = asyncio.ensure_future(self._channel.controlled_shutdown(request))
        try:
            while not (await asyncio.wait({asking}, timeout=WITHOUT_STORE_S))[0]:
                if await self._others() is None:
                    raise _StoreGone
            return asking.result()
        finally:
            asking.cancel()

    async def _before_next_try(self) -> None:
        """Wait `controlled.shutdown.retry.backoff.ms`, or less when there is a new controller to ask."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.get_int("controlled.shutdown.retry.backoff.ms") / 1000
        asked = self._controller.controller_id
        while loop.time() < deadline and not await self._is_alone():
            await asyncio.sleep(CONTROLLER_POLL_S)
            if self._controller.controller_id not in (None, asked):
                return

    async def _is_alone(self) -> bool:
        return await self._others() == set()

    async def _others(self) -> set[str] | None:
        """Which other brokers are registered (asked of the store: there may be no controller to tell).

        None: the store does not answer.
        """
        try:
            async with asyncio.timeout(WITHOUT_STORE_S):
                return set(await self._store.children(znodes.BROKER_IDS)) - {str(self._config.broker_id)}
        except (StoreError, TimeoutError):
            return None
