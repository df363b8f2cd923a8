"""JSON Schemas: parsing, and whether one schema accepts what another one accepts.

Called by `formats`. `jsonschema` validates a schema against its draft's meta-schema (draft 7 unless
`$schema` names another); `json_compatibility` compares two schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from jsonschema import Draft7Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from ottla_pipeline.registry.formats.json_compatibility import differences
from ottla_pipeline.registry.formats.json_document import Document
from ottla_pipeline.registry.formats.parsed import Incompatibility, InvalidSchema, Parsed, load_json

TYPE: Final = "JSON"
_LENIENT: Final = frozenset(
    (
        "ADDITIONAL_PROPERTIES_NARROWED",
        "ADDITIONAL_PROPERTIES_REMOVED",
        "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    )
)
"""What compatibilityPolicy=LENIENT permits, as in Confluent's."""


def parse(text: str, references: Mapping[str, str], *, normalize: bool = False) -> Parsed:
    """`normalize` sorts the members of objects."""
    loaded = load_json(text)
    if not isinstance(loaded, dict | bool):
        raise InvalidSchema("not a JSON Schema: must be an object, true or false")
    if isinstance(loaded, dict):
        try:
            validator_for(loaded, default=Draft7Validator).check_schema(loaded)
        except SchemaError as error:
            where = "/".join(str(part) for part in error.absolute_path)
            raise InvalidSchema(f"not a JSON Schema: /{where}: {error.message}") from None
    canonical = json.dumps(loaded, separators=(",", ":"), ensure_ascii=False, sort_keys=normalize)
    return Parsed(
        TYPE, canonical, Document(loaded, {name: load_json(each) for name, each in references.items()})
    )


def unreadable(reader: Parsed, writer: Parsed, *, lenient: bool = False) -> list[Incompatibility]:
    """What `writer` accepts and `reader` rejects. `lenient` considers only listed properties and ignores
    additional ones."""
    found = differences(reader.model, writer.model)
    return [each for each in found if not (lenient and each.kind in _LENIENT)]
