"""The session that a crash left behind: remembered on disk, ended by the next start.

Called by the broker, which holds the lock of its log directory: whoever wrote this file is dead. Without it,
ZooKeeper takes the dead broker for alive until its session times out, and its partitions wait that long for a
new leader even if the process is started again at once. Kafka waits.

The file has the session's password, and is readable by its owner alone.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from ottla.metadata.store import MetadataStore

log = logging.getLogger(__name__)

FILE_NAME: Final = "zookeeper.session"


def remember(store: MetadataStore, directory: Path) -> None:
    """Write down the store's present session."""
    path = directory / FILE_NAME
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(store.session_token)


def forget(directory: Path) -> None:
    """The session was ended in order: there is nothing to end."""
    (directory / FILE_NAME).unlink(missing_ok=True)


async def end_former(store: MetadataStore, directory: Path) -> bool:
    """End the session of a former run that did not end it; True if there was such a run.

    Raises StoreUnavailable. A file that cannot be read is dropped: the session then ends by its time-out.
    """
    path = directory / FILE_NAME
    try:
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError) as error:
        log.warning("cannot read %s: %s", path, error)
        return True
    try:
        await store.end_session(token)
        log.info("ended the session that the last run left behind")
    except ValueError:
        log.warning("%s holds no session", path)
    return True
