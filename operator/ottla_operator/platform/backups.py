"""Takes and restores backups beside the reconciliations: `Backups` and `Recoveries` of the environment.

Called by `reconcile`, on every platform. What a restart of the operator interrupts is begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Generic, TypeVar

from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla_operator.backup.cluster import Restored
from ottla_operator.backup.document import Backup, BackupError, dumped, loaded, summary
from ottla_operator.backup.objects import Folder, credentials_in, newest, object_name
from ottla_operator.planning.backups import BackupOutcome
from ottla_operator.planning.recovery import RecoveryOutcome
from ottla_operator.platform.interfaces import Secrets, StepFailed
from ottla_operator.resources import BrokerCluster
from ottla_operator.resources.backup import BackupSpec, RecoverySpec

_TIMEOUT_S: Final = 300

T = TypeVar("T")


class _Background(Generic[T]):
    """Work that goes on beside the reconciliations, one at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[T] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def outcome(self) -> T | None:
        """The result of work that has ended, once."""
        if self._task is None or not self._task.done():
            return None
        ended, self._task = self._task, None
        return None if ended.cancelled() else ended.result()

    def begin(self, work: Coroutine[Any, Any, T]) -> None:
        assert not self.running
        self._task = asyncio.ensure_future(work)


async def _attempt(work: Awaitable[T]) -> T | str:
    """The result of the work, or why it failed."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await work
    except TimeoutError:
        return f"it was not completed within {_TIMEOUT_S} s"
    except (BackupError, StepFailed, ClientError, KafkaError, OSError) as error:
        return str(error)
    except Exception as error:
        # A bug. It must not end the reconciliations of the cluster.
        return repr(error)


class BackupRunner:
    """The backups of one cluster. `take`: reads its metadata."""

    def __init__(
        self, take: Callable[[int], Awaitable[Backup]], secrets: Secrets, clock_ms: Callable[[], int]
    ) -> None:
        self._take, self._secrets, self._clock_ms = take, secrets, clock_ms
        self._work = _Background[BackupOutcome]()

    @property
    def running(self) -> bool:
        """Whether a backup is in progress."""
        return self._work.running

    def outcome(self) -> BackupOutcome | None:
        """The outcome of a backup that has ended, once."""
        return self._work.outcome()

    def begin(self, cluster: BrokerCluster, request: str) -> None:
        """Begin a backup for this request; "" for the schedule."""
        spec = cluster.spec.backup
        assert spec is not None
        self._work.begin(self._run(spec, cluster.metadata.name, request))

    async def _run(self, spec: BackupSpec, cluster: str, request: str) -> BackupOutcome:
        done = await _attempt(self._write(spec, cluster))
        url, message = ("", done) if isinstance(done, str) else done
        return BackupOutcome(self._clock_ms(), url, message, request)

    async def _write(self, spec: BackupSpec, cluster: str) -> tuple[str, str]:
        """The URL of a new backup, and what is in it."""
        credentials = await _credentials(self._secrets, spec.destination, spec.credentials_secret)
        folder = Folder(spec.destination, spec.endpoint or "", credentials)
        backup = await self._take(self._clock_ms())
        url = await folder.put(object_name(cluster, backup.created_at), dumped(backup))
        await folder.keep(cluster, spec.retention)
        return url, summary(backup)


class RecoveryRunner:
    """The recovery of one cluster. `restore`: restores a backup into it."""

    def __init__(
        self,
        restore: Callable[[Backup, int], Awaitable[Restored]],
        secrets: Secrets,
        clock_ms: Callable[[], int],
    ) -> None:
        self._restore, self._secrets, self._clock_ms = restore, secrets, clock_ms
        self._work = _Background[RecoveryOutcome]()

    @property
    def running(self) -> bool:
        """Whether an attempt is in progress."""
        return self._work.running

    def outcome(self) -> RecoveryOutcome | None:
        """The outcome of an attempt that has ended, once."""
        return self._work.outcome()

    def begin(self, cluster: BrokerCluster, source: str) -> None:
        """Begin to restore the backup at this URL; "": find the one that the spec names, and read it."""
        spec = cluster.spec.bootstrap.recovery
        assert spec is not None
        self._work.begin(self._run(spec, source))

    async def _run(self, spec: RecoverySpec, source: str) -> RecoveryOutcome:
        done = await _attempt(self._recover(spec, source))
        return RecoveryOutcome(self._clock_ms(), message=done) if isinstance(done, str) else done

    async def _recover(self, spec: RecoverySpec, source: str) -> RecoveryOutcome:
        """Raises BackupError for a backup that cannot be read or restored completely."""
        credentials = await _credentials(self._secrets, spec.source, spec.credentials_secret)
        name = "" if source else spec.name or ""
        url, content = await newest(source or spec.source, spec.endpoint or "", name, credentials)
        backup = _loaded(url, content)
        if not source:
            return RecoveryOutcome(self._clock_ms(), url, summary(backup))
        done = await self._restore(backup, self._clock_ms())
        if done.failed:
            more = f" (and {len(done.failed) - 1} more)" if len(done.failed) > 1 else ""
            raise BackupError(f"{done.failed[0]}{more}")
        left = (*backup.left_out, *done.notes)
        return RecoveryOutcome(self._clock_ms(), url, summary(backup), restored=True, left=left)


def _loaded(url: str, content: bytes) -> Backup:
    try:
        return loaded(content)
    except BackupError as error:
        raise BackupError(f"{url}: {error}") from None


async def _credentials(secrets: Secrets, url: str, name: str | None) -> Mapping[str, str]:
    if name is None:
        return {}
    secret = (await secrets.read([name])).get(name)
    if secret is None:
        raise StepFailed("SecretNotFound", f"there is no Secret {name}")
    return credentials_in(url, secret.data)
