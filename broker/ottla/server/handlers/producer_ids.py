"""InitProducerId 0 to 5, for idempotent producers, and AllocateProducerIds 0, for brokers.

Behaviour: any broker answers InitProducerId with an id from its block; when that is used up, and the
controller brings none in time, with COORDINATOR_LOAD_IN_PROGRESS, which every client retries. An idempotent
producer that asks again with its id and epoch (version 3 and later, KIP-360) gets a new id. Blocks of 1000
ids come from the controller, which serves AllocateProducerIds to brokers in their present epoch (KIP-730).

Left out on purpose: transactional ids, INVALID_REQUEST (no broker coordinates transactions yet; a retriable
error would let the producer ask until its time-out).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.controller.controller import Controller
from ottla.metadata.producer_ids import NoBlock, ProducerIdBlock, ProducerIds
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from ottla.server.controller_channel import ControllerChannel
from ottla.server.dispatch import Request, Route

# Short of every client's request time-out: it is better told to come again.
_WAIT_S: Final = 2.0
_NONE: Final = -1


class ProducerIdsHandler:
    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        channel: ControllerChannel,
        controller: Controller,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._channel = channel
        self._controller = controller
        self._producer_ids = ProducerIds(self._ask)

    def routes(self) -> list[Route]:
        return [
            Route(InitProducerIdRequest, self.init, _init_error),
            Route(AllocateProducerIdsRequest, self.allocate, _allocate_error),
        ]

    async def init(self, request: Request) -> InitProducerIdResponse:
        message = request.decode(InitProducerIdRequest)
        half_given = (message.producer_id == _NONE) != (message.producer_epoch == _NONE)
        if message.transactional_id is not None or half_given:
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=_NONE)
        try:
            producer_id = await self._producer_ids.next(_WAIT_S)
        except NoBlock:
            return InitProducerIdResponse(
                error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=_NONE
            )
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    async def allocate(self, request: Request) -> AllocateProducerIdsResponse:
        return await self._controller.allocate_producer_ids(request.decode(AllocateProducerIdsRequest))

    async def _ask(self) -> ProducerIdBlock:
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        response = await self._channel.allocate_producer_ids(request)
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code))
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)


def _init_error(
    message: InitProducerIdRequest, version: int, code: ErrorCode, detail: str | None
) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=_NONE)


def _allocate_error(
    message: AllocateProducerIdsRequest, version: int, code: ErrorCode, detail: str | None
) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=code)
