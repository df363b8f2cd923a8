"""Client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.admin.base import Family
from ottla.client.routing import raise_first
from ottla.protocol import messages as m


class Quotas(Family):
    async def describe_client_quotas(self) -> list[tuple[dict[str, str | None], dict[str, float]]]:
        """Every entity that has quotas (by type `user`, `client-id`, `ip`; a name of None is the default)."""
        response = await self._brokers.any(m.DescribeClientQuotasRequest())
        raise_first([(response.error_code, response.error_message)])
        return [
            (
                {part.entity_type: part.entity_name for part in entry.entity},
                {value.key: value.value for value in entry.values},
            )
            for entry in response.entries or ()
        ]

    async def alter_client_quotas(
        self, entity: Mapping[str, str | None], values: Mapping[str, float | None]
    ) -> None:
        """Set quotas of one entity; None removes one. The others stay."""
        alter = m.AlterClientQuotasRequest
        entry = alter.EntryData(
            entity=[alter.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[
                alter.OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in values.items()
            ],
        )
        response = await self._brokers.any(alter(entries=[entry]))
        raise_first((answer.error_code, answer.error_message) for answer in response.entries)
