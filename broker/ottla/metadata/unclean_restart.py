"""Restart after an unclean shutdown: expire the previous ZooKeeper session, and wait for failover.

Called by the broker's start, which holds the locks of its log directories: the process that saved a session
there is dead. The saved session expires at once, so that its partitions get new leaders without waiting for
its timeout. The file has the session's password, and only its owner can read it.

Then the broker waits until a controller has removed it from the ISRs that have other live members, and so
from their leadership. Otherwise it could register so quickly that no controller notices the restart, and stay
in sync, or the leader with the same leader epoch, of partitions whose last records a crash of the machine may
have lost; if the leader fails then, the controller would elect it, and in-sync followers would truncate to
its log (KIP-966). Kafka in ZooKeeper mode has neither: its brokers do not start while their previous session
is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from ottla.metadata import znodes
from ottla.metadata.store import MetadataStore
from ottla.ports.files import Files, read_file, unlink_if_exists, write_file

log = logging.getLogger(__name__)

FILE_NAME: Final = "zookeeper.session"


def save_session(files: Files, store: MetadataStore, directories: Iterable[Path]) -> None:
    """Save the store's current session in every log directory, because one of them may fail."""
    for directory in directories:
        path = directory / FILE_NAME
        try:
            write_file(files, path, store.session_token.encode("ascii"), mode=0o600)
        except OSError as error:
            log.warning("Cannot write %s: %s", path, error)


def clear_session(files: Files, directories: Iterable[Path]) -> None:
    """Delete the saved session after a clean shutdown."""
    for directory in directories:
        with contextlib.suppress(OSError):
            unlink_if_exists(files, directory / FILE_NAME)


async def expire_session(files: Files, store: MetadataStore, directories: Iterable[Path]) -> bool:
    """Expire the saved sessions of previous runs; True if there was one, so the shutdown was unclean.

    Raises StoreUnavailable. The session of a file that cannot be read expires by its timeout.
    """
    tokens: dict[str, None] = {}
    for directory in directories:
        path = directory / FILE_NAME
        try:
            tokens[read_file(files, path).decode("ascii").strip()] = None
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            log.warning("Cannot read %s: %s", path, error)
            tokens[""] = None
    for token in tokens:
        try:
            await store.end_session(token)
            log.info("Expired the ZooKeeper session of the previous run")
        except ValueError:
            log.warning("%s has no valid session", FILE_NAME)
    return bool(tokens)


POLL_S: Final = 0.1
SESSIONS: Final = 3
"""So many session time-outs a controller has for the failover."""


def can_fail_over(states: Iterable[znodes.PartitionState], broker_id: int, alive: Collection[int]) -> bool:
    """Whether the broker is in sync, as leader or as follower, for a partition with another live replica in
    sync."""
    return any(
        broker_id in state.isr and any(other in alive for other in state.isr if other != broker_id)
        for state in states
    )


async def wait_for_failover(
    store: MetadataStore, broker_id: int, partitions: Iterable[tuple[str, int]], *, session_timeout_s: float
) -> bool:
    """Wait until the broker is in no ISR with other live members; False if one controller leaves it there.

    Returns True at once if no other broker is alive. Topics that are being deleted do not count: the
    controller does not change their ISRs. A controller that died is seen for one session time-out, so one
    that is seen for three works and does not do it. What does not count is time without an answer of
    the store, in which no session expires either. Raises StoreUnavailable.
    """
    paths = [(t, p, znodes.state_path(t, p)) for t, p in partitions]
    last_controller, seen_s = -1, 0.0
    while True:
        alive = {int(name) for name in await store.children(znodes.BROKER_IDS)} - {broker_id}
        deleting = set(await store.children(znodes.DELETE_TOPICS))
        found = await store.get_many([path for _, _, path in paths])
        states = [
            znodes.decode_partition_state(topic, partition, node[0])
            for (topic, partition, _), node in zip(paths, found, strict=True)
            if node is not None and topic not in deleting
        ]
        stat = await store.exists(znodes.CONTROLLER)
        controller = -1 if stat is None else stat.czxid
        if not alive or (controller >= 0 and not can_fail_over(states, broker_id, alive)):
            return True
        if controller != last_controller:
            last_controller, seen_s = controller, 0.0
        if seen_s >= SESSIONS * session_timeout_s:
            log.warning("No failover happened within %.1f s; registering as a member of the old ISRs", seen_s)
            return False
        await asyncio.sleep(POLL_S)
        seen_s += POLL_S
