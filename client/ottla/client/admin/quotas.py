"""Client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.client.admin.network import AdminNetwork, outcome, raise_error
from ottla.client.admin_types import ANY, QuotaEntity, Results
from ottla.protocol import messages as m

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_NOTHING: Final[Mapping[str, object]] = {}


async def describe_client_quotas(
    network: AdminNetwork, match: Mapping[str, object] = _NOTHING, *, strict: bool = False
) -> dict[QuotaEntity, dict[str, float]]:
    """The quotas of matching entities. `match`: by entity type (`user`, `client-id`, `ip`) a name, None for
    the default entity, or `ANY`; empty: all. `strict`: only entities without other types. Raises
    KafkaError."""
    component = m.DescribeClientQuotasRequest.ComponentData
    rows = []
    for kind, name in match.items():
        code = _ANY if name is ANY else _DEFAULT if name is None else _EXACT
        rows.append(component(entity_type=kind, match_type=code, match=str(name) if code == _EXACT else None))
    response = await network.any_broker(m.DescribeClientQuotasRequest(components=rows, strict=strict))
    raise_error(response.error_code, response.error_message)
    return {
        QuotaEntity({part.entity_type: part.entity_name for part in entry.entity}): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }


async def alter_client_quotas(
    network: AdminNetwork,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
) -> Results[QuotaEntity, None]:
    """Set quotas of entities; None removes a quota. Other quotas stay."""
    request = m.AlterClientQuotasRequest
    entries = [
        request.EntryData(
            entity=[request.EntityData(entity_type=k, entity_name=n) for k, n in entity.items()],
            ops=[
                request.OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in values.items()
            ],
        )
        for entity, values in changes.items()
    ]
    if not entries:
        return Results({})
    response = await network.any_broker(request(entries=entries, validate_only=validate_only))
    found = {}
    for row in response.entries:
        entity = QuotaEntity({part.entity_type: part.entity_name for part in row.entity})
        found[entity] = outcome(row.error_code, row.error_message, dict(entity))
    return Results(found)


async def alter_client_quota(
    network: AdminNetwork, entity: Mapping[str, str | None], values: Mapping[str, float | None]
) -> None:
    """Set quotas of one entity. Raises KafkaError."""
    (await alter_client_quotas(network, {QuotaEntity(entity): values})).raise_first()
