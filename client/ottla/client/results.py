"""What calls about many items return: for each item its result, or what went wrong with it.

Returned by every such call of `AdminClient`. Invariant: each item that was asked about is in the mapping or
in `errors`, and never in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, Self, TypeVar, overload

from ottla.client.errors import ClientError

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Results(Mapping[K, V], Generic[K, V]):
    """A mapping of the items that went well to their results; `errors` has the others.

    `results[item]` raises the item's error where it failed, and KeyError where nobody asked for it.
    """

    __slots__ = ("_succeeded", "errors")

    def __init__(self, outcomes: Mapping[K, V | ClientError]) -> None:
        """`outcomes`: each item's result, or its error."""
        self._succeeded: dict[K, V] = {}
        self.errors: dict[K, ClientError] = {}
        for key, outcome in outcomes.items():
            if isinstance(outcome, ClientError):
                self.errors[key] = outcome
            else:
                self._succeeded[key] = outcome

    def raise_first(self) -> Self:
        """Raise the first item's error, if any failed: for callers to whom a part is not enough."""
        for error in self.errors.values():
            raise error
        return self

    def outcomes(self) -> dict[K, V | ClientError]:
        """Each item's result, or its error."""
        return {**self._succeeded, **self.errors}

    def __getitem__(self, key: K) -> V:
        if key in self.errors:
            raise self.errors[key]
        return self._succeeded[key]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D) -> V | D: ...
    def get(self, key: K, default: object = None) -> object:
        """The item's result; `default` where it failed, or was not asked for."""
        return self._succeeded.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._succeeded

    def __iter__(self) -> Iterator[K]:
        return iter(self._succeeded)

    def __len__(self) -> int:
        return len(self._succeeded)

    def __repr__(self) -> str:
        return f"Results({self._succeeded!r}, errors={self.errors!r})"
