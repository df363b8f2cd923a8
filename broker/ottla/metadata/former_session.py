"""The session that a crash left behind: remembered on disk, ended by the next start.

Called by the broker, which holds the locks of its log directories: whoever wrote this file is dead. Without
it, ZooKeeper takes the dead broker for alive until its session times out, and its partitions wait that long
for a new leader even if the process is started again at once. Kafka waits.

The file has the session's password, and is readable by its owner alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ottla.metadata.store import MetadataStore

log = logging.getLogger(__name__)

FILE_NAME: Final = "zookeeper.session"


def remember(store: MetadataStore, directories: Iterable[Path]) -> None:
    """Write down the store's present session, in every log directory: one of them may fail."""
    for directory in directories:
        path = directory / FILE_NAME
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(store.session_token)
        except OSError as error:
            log.warning("cannot write %s: %s", path, error)


def forget(directories: Iterable[Path]) -> None:
    """The session was ended in order: there is nothing to end."""
    for directory in directories:
        with contextlib.suppress(OSError):
            (directory / FILE_NAME).unlink(missing_ok=True)


async def end_former(store: MetadataStore, directories: Iterable[Path]) -> bool:
    """End the sessions that former runs did not end; True if there was such a run.

    Raises StoreUnavailable. A file that cannot be read is dropped: the session then ends by its time-out.
    """
    tokens: dict[str, None] = {}
    for directory in directories:
        path = directory / FILE_NAME
        try:
            tokens[path.read_text(encoding="ascii").strip()] = None
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            log.warning("cannot read %s: %s", path, error)
            tokens[""] = None
    for token in tokens:
        try:
            await store.end_session(token)
            log.info("ended the session that the last run left behind")
        except ValueError:
            log.warning("%s holds no session", FILE_NAME)
    return bool(tokens)
