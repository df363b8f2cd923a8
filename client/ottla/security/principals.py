"""Principals: the identity of a client, as Kafka names it in ACLs, quotas and logs.

Made when a connection has authenticated; used where clients are distinguished (quotas, ACLs, delegation
tokens). Types other than "User" are made by custom principal builders only (KIP-189).
"""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """A type, which is "User" without a custom principal builder, and a name."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """ "User:alice"; the name may have further colons. Raises ValueError, with Kafka's message."""
        kind, colon, name = text.partition(":")
        if not colon:
            raise ValueError(f"expected a string in format principalType:principalName but got {text}")
        return cls(kind, name)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""A client of a listener without authentication."""
