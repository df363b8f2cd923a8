"""Who somebody is: a principal, as Kafka names them in ACLs, quotas and its logs.

Made when a connection has authenticated, asked for by whatever treats clients differently (quotas, ACLs,
delegation tokens). Types other than "User" are a custom principal builder's (KIP-189).
"""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """The type is "User" but for custom principal builders; equal ones are the same to everybody."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """ "User:alice"; the name may hold further colons. Raises ValueError, with Kafka's message."""
        kind, colon, name = text.partition(":")
        if not colon:
            raise ValueError(f"expected a string in format principalType:principalName but got {text}")
        return cls(kind, name)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""A client that did not have to say who it is."""
