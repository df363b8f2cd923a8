"""Sample data with nested records and a schema that evolves: orders of a shop, reproducible from a seed.

- v1: an order with its lines (a record in an array) and the customer's name.
- v2: a nested address, null by default; a line has a discount (a decimal), 0 by default; marks (a map).
- v3: `customer` is renamed `buyer` (by an alias), and its `name` is renamed `full_name`.
"""

from __future__ import annotations

import copy
import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

BEGAN = datetime(2024, 5, 1, tzinfo=UTC)
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def _schemas() -> list[dict[str, Any]]:
    line = {
        "type": "record",
        "name": "Line",
        "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
    }
    customer = {"type": "record", "name": "Customer", "fields": [{"name": "name", "type": "string"}]}
    first: dict[str, Any] = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "customer", "type": customer},
            {"name": "lines", "type": {"type": "array", "items": line}},
        ],
    }
    second = copy.deepcopy(first)
    address = {
        "type": "record",
        "name": "Address",
        "fields": [
            {"name": "city", "type": "string"},
            {"name": "since", "type": {"type": "int", "logicalType": "date"}},
        ],
    }
    second["fields"][3]["type"]["items"]["fields"].append(
        {"name": "discount", "type": DECIMAL, "default": "\u0000"}
    )
    second["fields"] += [
        {"name": "address", "type": ["null", address], "default": None},
        {"name": "marks", "type": {"type": "map", "values": "long"}, "default": {}},
    ]
    third = copy.deepcopy(second)
    buyer = third["fields"][2]
    buyer |= {"name": "buyer", "aliases": ["customer"]}
    buyer["type"]["fields"] = [{"name": "full_name", "aliases": ["name"], "type": "string"}]
    return [first, second, third]


SCHEMAS = _schemas()


def order(number: int, version: int) -> dict[str, Any]:
    """Order `number` in version 1, 2 or 3 of the schema."""
    chance = random.Random(number)
    who = chance.choice(["Ada", "Grace", "Edsger", "Barbara"])
    lines: list[dict[str, Any]] = [
        {"sku": f"s{chance.randrange(9)}", "count": chance.randrange(1, 5)}
        for _ in range(chance.randrange(4))
    ]
    made: dict[str, Any] = {"id": f"o{number}", "at": BEGAN + timedelta(hours=number, milliseconds=number)}
    made |= {"buyer": {"full_name": who}} if version == 3 else {"customer": {"name": who}}
    made["lines"] = lines
    if version > 1:
        for line in lines:
            line["discount"] = Decimal(chance.randrange(100)) / Decimal(100)
        since = (BEGAN + timedelta(days=number)).date()
        made["address"] = {"city": f"c{number % 3}", "since": since} if number % 2 else None
        made["marks"] = {f"m{n}": n for n in range(number % 3)}
    return made


def as_third(made: dict[str, Any]) -> dict[str, Any]:
    """An order of any version as a reader with version 3 gets it."""
    found = {"address": None, "marks": {}} | made
    if "customer" in found:
        found["buyer"] = {"full_name": found.pop("customer")["name"]}
    found["lines"] = [{"discount": Decimal("0.00")} | line for line in found["lines"]]
    return found


JSON_SCHEMAS: list[dict[str, Any]] = [
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "required": ["id", "at"],
        "properties": {
            "id": {"type": "string"},
            "at": {"type": "string", "format": "date-time"},
            "customer": {"type": "object", "properties": {"name": {"type": "string"}}},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
                },
            },
            **more,
        },
    }
    for more in (
        {},
        {
            "address": {
                "oneOf": [
                    {"type": "null"},
                    {"type": "object", "properties": {"city": {"type": "string"}}},
                ]
            },
            "marks": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    )
]


def json_order(number: int, version: int) -> dict[str, Any]:
    """Order `number` in version 1 or 2 of the JSON Schema."""
    made: dict[str, Any] = json.loads(json.dumps(order(number, version), default=str))
    made["at"] = order(number, version)["at"].isoformat().replace("+00:00", "Z")
    for line in made["lines"]:
        line.pop("discount", None)
    if made.get("address"):
        made["address"].pop("since")
    return made
