"""Takes backups beside the reconciliations, one at a time: `Backups` of the environment.

Called by `reconcile`, on every platform. A backup that a restart of the operator interrupts is begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla_operator.backup.document import Backup, BackupError, dumped, summary
from ottla_operator.backup.objects import Folder, credentials_in, object_name
from ottla_operator.planning.backups import BackupOutcome
from ottla_operator.platform.interfaces import Secrets, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.backup import BackupSpec

_TIMEOUT_S: Final = 300


class BackupRunner:
    """The backups of one cluster. `take`: reads its metadata."""

    def __init__(
        self, take: Callable[[int], Awaitable[Backup]], secrets: Secrets, clock_ms: Callable[[], int]
    ) -> None:
        self._take, self._secrets, self._clock_ms = take, secrets, clock_ms
        self._task: asyncio.Task[BackupOutcome] | None = None

    @property
    def running(self) -> bool:
        """Whether a backup is in progress."""
        return self._task is not None and not self._task.done()

    def outcome(self) -> BackupOutcome | None:
        """The outcome of a backup that has ended, once."""
        if self._task is None or not self._task.done():
            return None
        ended, self._task = self._task, None
        return None if ended.cancelled() else ended.result()

    def begin(self, cluster: BrokerCluster, request: str) -> None:
        """Begin a backup for this request; "" for the schedule."""
        assert not self.running
        spec = cluster.spec.backup
        assert spec is not None
        self._task = asyncio.ensure_future(self._run(spec, cluster.metadata.name, request))

    async def _run(self, spec: BackupSpec, cluster: str, request: str) -> BackupOutcome:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                folder = Folder(spec.destination, spec.endpoint or "", await self._credentials(spec))
                backup = await self._take(self._clock_ms())
                url = await folder.put(object_name(cluster, backup.created_at), dumped(backup))
                await folder.keep(cluster, spec.retention)
        except TimeoutError:
            message = f"it was not completed within {_TIMEOUT_S} s"
        except (BackupError, StepFailed, ClientError, KafkaError, OSError) as error:
            message = str(error)
        except Exception as error:
            # A bug. It must not end the reconciliations of the cluster.
            message = repr(error)
        else:
            return BackupOutcome(self._clock_ms(), url, summary(backup), request)
        return BackupOutcome(self._clock_ms(), message=message, request=request)

    async def _credentials(self, spec: BackupSpec) -> Mapping[str, str]:
        name = spec.credentials_secret
        if name is None:
            return {}
        secret = (await self._secrets.read([name])).get(name)
        if secret is None:
            raise StepFailed("SecretNotFound", f"there is no Secret {name}")
        return credentials_in(spec.destination, secret.data)
