"""The admin client: what tools and the operator ask of a cluster, as coroutines.

One module a family of requests; `ottla.client.routing` knows whom to ask. Errors are `KafkaError` with
Kafka's code, or `ClusterUnreachable` when no broker answers. Not for the data path.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.client.admin.acls import Acls
from ottla.client.admin.configs import Configs
from ottla.client.admin.groups import Groups
from ottla.client.admin.logs import Logs
from ottla.client.admin.quotas import Quotas
from ottla.client.admin.replicas import Replicas
from ottla.client.admin.topics import Topics
from ottla.client.admin.users import Users
from ottla.client.admin_types import ClusterDescription
from ottla.client.routing import Brokers
from ottla.security.clients import ClientSecurity


class AdminClient(Topics, Configs, Replicas, Groups, Logs, Quotas, Acls, Users):
    """One client of one cluster. Not safe for use from several event loops."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        client_id: str = "ottla-admin",
        timeout_s: float = 30,
        retry_pause_s: float = 0.2,
        security: ClientSecurity | None = None,
    ) -> None:
        self._brokers = Brokers(
            bootstrap,
            client_id=client_id,
            timeout_s=timeout_s,
            retry_pause_s=retry_pause_s,
            security=security,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._brokers.close()

    async def describe_cluster(self) -> ClusterDescription:
        """The live brokers and the controller."""
        return await self._brokers.describe()


__all__ = ["AdminClient"]
