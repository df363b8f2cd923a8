"""All messages of the protocol, by name. Each module of this package declares those of one API family."""

# ruff: noqa: F403

from typing import Final

from ottla.protocol.messages.acls import *
from ottla.protocol.messages.authentication import *
from ottla.protocol.messages.cluster import *
from ottla.protocol.messages.configs import *
from ottla.protocol.messages.delegation_tokens import *
from ottla.protocol.messages.groups import *
from ottla.protocol.messages.headers import *
from ottla.protocol.messages.logs import *
from ottla.protocol.messages.metadata import *
from ottla.protocol.messages.offsets import *
from ottla.protocol.messages.produce_fetch import *
from ottla.protocol.messages.topics import *
from ottla.protocol.messages.transactions import *
from ottla.protocol.types import Message

ALL: Final[tuple[type[Message], ...]] = tuple(
    found
    for _, found in sorted(globals().items())
    if isinstance(found, type) and issubclass(found, Message) and found is not Message
)
"""The classes of all messages, by name."""
