"""DescribeClientQuotas and AlterClientQuotas, versions 0 and 1 (KIP-546).

Behaviour: any broker responds, as in Kafka's ZooKeeper mode; a change is stored under /config and reaches all
brokers by a notification. Each entity of an alteration succeeds or fails separately. A duplicate entity is
changed twice and has one result, that of the last change. Of two names of the same type the last counts.
"""

from __future__ import annotations

import logging

from ottla.metadata.client_quotas import Component, Entity, StoredQuotas
from ottla.protocol import messages as m
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.server.dispatch.dispatcher import Request, Route

log = logging.getLogger(__name__)

EXACT, DEFAULT, SPECIFIED = 0, 1, 2  # match types


class ClientQuotasHandler:
    def __init__(self, quotas: StoredQuotas) -> None:
        self._quotas = quotas

    def routes(self) -> list[Route]:
        return [
            Route(m.DescribeClientQuotasRequest, self.describe, _describe_error),
            Route(m.AlterClientQuotasRequest, self.alter, _alter_error),
        ]

    async def describe(self, request: Request) -> m.DescribeClientQuotasResponse:
        message = request.decode(m.DescribeClientQuotasRequest)
        components = [_component(data) for data in message.components]
        found = await self._quotas.describe(components, strict=message.strict)
        return m.DescribeClientQuotasResponse(
            entries=[
                m.DescribeClientQuotasResponse.EntryData(
                    entity=[
                        m.DescribeClientQuotasResponse.EntityData(entity_type=entity_type, entity_name=name)
                        for entity_type, name in entity.items()
                    ],
                    values=[
                        m.DescribeClientQuotasResponse.ValueData(key=key, value=value)
                        for key, value in values.items()
                    ],
                )
                for entity, values in found
            ],
        )

    async def alter(self, request: Request) -> m.AlterClientQuotasResponse:
        message = request.decode(m.AlterClientQuotasRequest)
        results: dict[frozenset[tuple[str, str | None]], m.AlterClientQuotasResponse.EntryData] = {}
        for entry in message.entries:
            entity = {part.entity_type: part.entity_name for part in entry.entity}
            result = _result(entity)
            try:
                await self._quotas.alter(
                    entity,
                    [(op.key, None if op.remove else op.value) for op in entry.ops],
                    validate_only=message.validate_only,
                )
            except KafkaError as e:
                result.error_code, result.error_message = e.code, e.message or None
            except Exception:
                # The other entities are altered nevertheless.
                log.exception("Altering the quotas of %s failed", entity)
                result.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            results[frozenset(entity.items())] = result
        return m.AlterClientQuotasResponse(entries=list(results.values()))


def _component(data: m.DescribeClientQuotasRequest.ComponentData) -> Component:
    if data.match_type == EXACT and data.match is not None:
        return Component(data.entity_type, data.match)
    if data.match_type == DEFAULT:
        return Component(data.entity_type)
    if data.match_type == SPECIFIED:
        return Component(data.entity_type, any_name=True)
    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "")  # without a message, as in Kafka


def _result(entity: Entity) -> m.AlterClientQuotasResponse.EntryData:
    return m.AlterClientQuotasResponse.EntryData(
        error_message=None,
        entity=[
            m.AlterClientQuotasResponse.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entity.items()
        ],
    )


def _describe_error(
    message: m.DescribeClientQuotasRequest, version: int, code: ErrorCode, detail: str | None
) -> m.DescribeClientQuotasResponse:
    return m.DescribeClientQuotasResponse(error_code=code, error_message=detail, entries=None)


def _alter_error(
    message: m.AlterClientQuotasRequest, version: int, code: ErrorCode, detail: str | None
) -> m.AlterClientQuotasResponse:
    response = m.AlterClientQuotasResponse()
    for entry in message.entries:
        result = _result({part.entity_type: part.entity_name for part in entry.entity})
        result.error_code, result.error_message = code, detail or code.message
        response.entries.append(result)
    return response
