"""InitProducerId 0 to 5, for idempotent and transactional producers, and AllocateProducerIds 0, for brokers.

Behaviour: without a transactional id any broker responds to InitProducerId with an id from its block; if the
block is used up and the controller allocates none in time, with COORDINATOR_LOAD_IN_PROGRESS, which every
client retries. An idempotent producer that sends its id and epoch (version 3 and later, KIP-360) gets a new
id. With a transactional id its coordinator responds; PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before version
4 (KIP-588). The controller allocates blocks of 1000 ids to brokers with their current epoch (KIP-730).
"""

from __future__ import annotations

from typing import Final

from ottla.controller.controller import Controller
from ottla.coordinators.transactions.coordinator import Outcome
from ottla.coordinators.transactions.interfaces import NoProducerId
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode
from ottla.server.coordination.transactions import TransactionService
from ottla.server.dispatch.dispatcher import Request, Route

FENCED_FROM: Final = 4
"""The first version of InitProducerId with PRODUCER_FENCED."""
_NONE: Final = -1


class ProducerIdsHandler:
    """See the module."""

    def __init__(self, transactions: TransactionService, controller: Controller) -> None:
        self._transactions = transactions
        self._controller = controller

    def routes(self) -> list[Route]:
        return [
            Route(m.InitProducerIdRequest, self.init, _init_error),
            Route(m.AllocateProducerIdsRequest, self.allocate, _allocate_error),
        ]

    async def init(self, request: Request) -> m.InitProducerIdResponse:
        message = request.decode(m.InitProducerIdRequest)
        error, producer_id, epoch = await self._init(message)
        if error is ErrorCode.PRODUCER_FENCED and request.version < FENCED_FROM:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        return m.InitProducerIdResponse(error_code=error, producer_id=producer_id, producer_epoch=epoch)

    async def _init(self, message: m.InitProducerIdRequest) -> Outcome:
        given = (message.producer_id, message.producer_epoch)
        if (given[0] == _NONE) != (given[1] == _NONE):
            return Outcome(ErrorCode.INVALID_REQUEST)
        if message.transactional_id is not None:
            return await self._transactions.coordinator.init_producer_id(
                message.transactional_id,
                message.transaction_timeout_ms,
                None if given == (_NONE, _NONE) else given,
            )
        try:
            return Outcome(ErrorCode.NONE, await self._transactions.new_producer_id(), 0)
        except NoProducerId:
            return Outcome(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async def allocate(self, request: Request) -> m.AllocateProducerIdsResponse:
        return await self._controller.allocate_producer_ids(request.decode(m.AllocateProducerIdsRequest))


def _init_error(
    message: m.InitProducerIdRequest, version: int, code: ErrorCode, detail: str | None
) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=code, producer_epoch=_NONE)


def _allocate_error(
    message: m.AllocateProducerIdsRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AllocateProducerIdsResponse:
    return m.AllocateProducerIdsResponse(error_code=code)
