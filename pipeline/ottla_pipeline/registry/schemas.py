"""Schemas of the state, parsed: what `decisions` compares, with a memory of the last ones.

A parsed schema depends on the texts of what it refers to; those are part of the key of the memory, so that it
never has to be told of changes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from ottla.client.registry import Reference
from ottla_pipeline.registry import formats
from ottla_pipeline.registry.errors import invalid_schema
from ottla_pipeline.registry.formats import Parsed
from ottla_pipeline.registry.records import Entry
from ottla_pipeline.registry.state import State

KEPT_MAX: Final = 1000


class Schemas:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], Parsed] = OrderedDict()

    def parse(
        self,
        state: State,
        kind: str,
        text: str,
        references: tuple[Reference, ...],
        *,
        normalize: bool = False,
    ) -> Parsed:
        """Raises Refused when it is no schema, or refers to what is not there."""
        try:
            resolved = tuple(state.texts(references))
        except LookupError as error:
            missing = error.args[0]
            where = f"'{missing.name}', version {missing.version} of subject '{missing.subject}'"
            raise invalid_schema(f"what it refers to as {where}, is not there or refers back") from None
        key = (kind, text, resolved, normalize)
        found = self._kept.get(key)
        if found is None:
            try:
                found = formats.parse(kind, text, dict(resolved), normalize=normalize)
            except formats.InvalidSchema as error:
                raise invalid_schema(str(error)) from None
            self._kept[key] = found
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def of(self, state: State, entry: Entry) -> Parsed:
        return self.parse(state, entry.type, entry.text, entry.references)
