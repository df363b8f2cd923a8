"""InitProducerId, versions 0 to 5, for idempotent producers.

Behaviour: any broker answers with an id from its block (blocks of 1000 come from the metadata store, as in
Kafka). An idempotent producer that asks again with its id and epoch (version 3 and later, KIP-360) gets a
new id.

Left out on purpose: transactional ids, INVALID_REQUEST, the same answer as FindCoordinator's for their
coordinator (no broker coordinates transactions yet; a retriable error would let the producer ask until its
time-out).
"""

from __future__ import annotations

from ottla.metadata.producer_ids import ProducerIds
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from ottla.server.dispatch import Request, Route


class ProducerIdsHandler:
    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    def routes(self) -> list[Route]:
        return [Route(InitProducerIdRequest, self.handle, _error)]

    async def handle(self, request: Request) -> InitProducerIdResponse:
        message = request.decode(InitProducerIdRequest)
        if message.transactional_id is not None:
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
        return InitProducerIdResponse(producer_id=await self._producer_ids.next(), producer_epoch=0)


def _error(
    message: InitProducerIdRequest, version: int, code: ErrorCode, detail: str | None
) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)
