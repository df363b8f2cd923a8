"""Appending for coordinators: to a partition that this broker leads, and answered when its replicas have it.

Called by `group_log` and `transaction_markers`.
"""

from __future__ import annotations

import asyncio
import logging

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.manager import ReplicaManager
from ottla.server.dispatch.purgatory import Purgatory

log = logging.getLogger(__name__)

ACKS_ALL = -1


def append_replicated(
    replicas: ReplicaManager,
    purgatory: Purgatory,
    key: tuple[str, int],
    batch: bytes,
    *,
    acks: int = ACKS_ALL,
    now_ms: int,
    timeout_ms: int,
    guard: object | None = None,
) -> asyncio.Future[ErrorCode]:
    """Append at once; the result comes with `acks`, or REQUEST_TIMED_OUT. INVALID_REQUIRED_ACKS."""
    settled: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def settle(code: ErrorCode) -> None:
        if not settled.done():
            settled.set_result(code)

    if acks not in (ACKS_ALL, 0, 1):
        settle(ErrorCode.INVALID_REQUIRED_ACKS)
        return settled
    try:
        replica = replicas.partition(*key)
        info = replica.append_as_leader(batch, required_acks=acks, now_ms=now_ms, client=False, guard=guard)
    except KafkaError as e:
        settle(e.code)
        return settled
    except OSError as e:
        log.error("append to %s-%d failed: %s", *key, e)
        settle(ErrorCode.KAFKA_STORAGE_ERROR)
        return settled
    if acks != ACKS_ALL:
        settle(ErrorCode.NONE)
        return settled
    required = info.last_offset + 1
    enough, error = replica.enough_replicas_for(required)
    if enough or error:
        settle(error)
    else:
        purgatory.await_replication(key, required, timeout_ms, settle)
    return settled
