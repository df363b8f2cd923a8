"""AllocateProducerIds (KIP-730): brokers get blocks of producer ids from the controller.

An entry point of the shell's. Only a registered broker is given one, and only in its present epoch; the
block is written down under the term's fence before it is answered, so that none is given twice.
"""

from __future__ import annotations

import logging

from ottla.controller.office import NotController, Office
from ottla.controller.term import Term
from ottla.metadata.producer_ids import ProducerIdsExhausted, allocate_block
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse

log = logging.getLogger(__name__)


async def allocate_producer_ids(
    office: Office, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    async def work(term: Term) -> AllocateProducerIdsResponse:
        broker = term.state.brokers.get(request.broker_id)
        if broker is None:
            return _refusal(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker.epoch != request.broker_epoch:
            log.warning("broker %d asks for producer ids in a past epoch", request.broker_id)
            return _refusal(ErrorCode.STALE_BROKER_EPOCH)
        try:
            block = await allocate_block(term.store, request.broker_id, guard=[term.fence])
        except ProducerIdsExhausted:
            log.error("all producer ids have been given out")
            return _refusal(ErrorCode.UNKNOWN_SERVER_ERROR)
        return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.size)

    try:
        return await office.in_office(work)
    except NotController:
        return _refusal(ErrorCode.NOT_CONTROLLER)
    except Exception:
        return _refusal(ErrorCode.UNKNOWN_SERVER_ERROR)


def _refusal(code: ErrorCode) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=code)
