"""Controlled shutdown: the controller moves leaders off this broker before it stops (KIP-4, KIP-47).

Called by `Broker.stop` while the broker still serves. Raises nothing: if the controlled shutdown fails, the
broker stops nevertheless, and the controller fails its leaders over when its session ends.
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
from ottla.server.coordination.controller_channel import ControllerChannel
from ottla.wire.connection import UnsupportedApi

log = logging.getLogger("ottla.broker")

CONTROLLER_POLL_S = 0.1

WITHOUT_STORE_S = 3.0
"""How long to try while the metadata store is unavailable: without it a controller cannot move leaders."""


class _StoreUnavailable(Exception):
    """Neither the controller nor the metadata store responds."""


class ControlledShutdown:
    """See the module."""

    def __init__(
        self, config: BrokerConfig, channel: ControllerChannel, controller: Controller, store: MetadataStore
    ) -> None:
        self._config = config
        self._channel = channel
        self._controller = controller
        self._store = store

    async def run(self, broker_epoch: int) -> None:
        """Request a controlled shutdown, `controlled.shutdown.max.retries` times at most."""
        retries = self._config.get_int("controlled.shutdown.max.retries")
        for attempt in range(retries):
            if attempt:
                await self._back_off()
            others = await self._other_brokers()
            if others == set():
                log.info("Controlled shutdown: there is no other broker to move leaders to")
                return
            request = ControlledShutdownRequest(broker_id=self._config.broker_id, broker_epoch=broker_epoch)
            try:
                response = await self._request(request)
            except _StoreUnavailable:
                log.warning("Controlled shutdown: neither the controller nor the metadata store responds")
                return
            except (OSError, TimeoutError, KafkaError, StoreError, UnsupportedApi) as e:
                log.warning("Error during controlled shutdown: %s", e or type(e).__name__)
                if others is None:
                    log.warning("Controlled shutdown: the metadata store does not respond either")
                    return
                continue
            if response.error_code == ErrorCode.NONE and not response.remaining_partitions:
                log.info("Controlled shutdown request returned successfully")
                return
            log.info(
                "Controlled shutdown: %s, %d partitions are still led by this broker",
                ErrorCode.of(response.error_code).name,
                len(response.remaining_partitions),
            )
        log.warning(
            "Proceeding to do an unclean shutdown as all the controlled shutdown attempts failed (%d)",
            retries,
        )

    async def _request(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """Wait for the controller's response as long as the metadata store is available."""
        response = asyncio.ensure_future(self._channel.controlled_shutdown(request))
        try:
            while not (await asyncio.wait({response}, timeout=WITHOUT_STORE_S))[0]:
                if await self._other_brokers() is None:
                    raise _StoreUnavailable
            return response.result()
        finally:
            response.cancel()

    async def _back_off(self) -> None:
        """Wait `controlled.shutdown.retry.backoff.ms`, or until there is a new controller."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.get_int("controlled.shutdown.retry.backoff.ms") / 1000
        previous = self._controller.controller_id
        while loop.time() < deadline and await self._other_brokers() != set():
            await asyncio.sleep(CONTROLLER_POLL_S)
            if self._controller.controller_id not in (None, previous):
                return

    async def _other_brokers(self) -> set[str] | None:
        """The other registered brokers, read from the store (there may be no controller); None if the store
        is unavailable."""
        try:
            async with asyncio.timeout(WITHOUT_STORE_S):
                return set(await self._store.children(znodes.BROKER_IDS)) - {str(self._config.broker_id)}
        except (StoreError, TimeoutError):
            return None
