"""Avro in the registry, judged by Java's Avro, which Confluent's registry asks: texts, verdicts, kinds,
places."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from ottla_pipeline.registry.formats import InvalidSchema, avro_schema
from ottla_pipeline.spark import JavaMissing, check_java
from tests.oracles import JAVA

JUDGE: Final = JAVA / "AvroCompatibility.java"
JARS: Final = Path(str(pyspark.__file__)).parent / "jars"
PAIRS: Final = 2000
PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
TEXTS: Final = (
    '"string"',
    '{"type": "string"}',
    '{"type":"string","logicalType":"uuid","z":1,"a":[1,2.5]}',
    '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2,"doc":"x"}',
    '{"fields":[{"type":"int","name":"a","default":1,"doc":"d","order":"descending","aliases":["b"],'
    '"x":{"k":null}}],"name":"R","type":"record","namespace":"n.s","doc":"hé","aliases":["O","o.O"],"zz":true}',
    '{"type":"record","name":"a.b.R","fields":[{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"],'
    '"default":"A"}},{"name":"e2","type":"E"},{"name":"e3","type":["null","a.b.E"],"default":null},{"name":"f",'
    '"type":{"type":"fixed","name":"F","namespace":"c","size":4}},{"name":"g","type":"c.F"},{"name":"m","type":'
    '{"type":"map","values":{"type":"array","items":"R"},"extra":"1"}}]}',
    '[{"type":"record","name":"R","fields":[]},"null",{"type":"array","items":"R"}]',
    '{"type":"record","name":"R","doc":"","default":3,"fields":[{"name":"d","type":"double","default":1e3},'
    '{"name":"l","type":"long","default":12345678901},{"name":"s","type":"string","default":"\\u00fcx\\"/"}]}',
    '{"type":"error","name":"R","fields":[]}',
    '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":{"type":"record","name":"Q",'
    '"fields":[{"name":"r","type":["null","n.R"]}]}}]}',
)


def verdicts(lines: list[str]) -> list[str]:
    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    ran = subprocess.run(
        ["java", "-cp", f"{JARS}/*", str(JUDGE)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return ran.stdout.splitlines()


class Maker:
    """Schemas by chance, and others that somebody may have made of them; the same ones in every run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def schema(self, depth: int, names: set[str]) -> Any:
        draw = self.chance.random()
        if depth == 0 or draw < 0.4:
            return self.chance.choice(PRIMITIVES)
        if draw < 0.5:
            return {"type": "array", "items": self.schema(depth - 1, names)}
        if draw < 0.58:
            return {"type": "map", "values": self.schema(depth - 1, names)}
        if draw < 0.7:
            branches: dict[str, Any] = {}
            for _ in range(self.chance.randint(1, 3)):
                branch = self.schema(depth - 1, names)
                if not isinstance(branch, list):
                    kind = branch if isinstance(branch, str) else branch["type"] + branch.get("name", "")
                    branches.setdefault(kind, branch)
            return list(branches.values()) or ["null"]
        return self._named(depth, names)

    def _named(self, depth: int, names: set[str]) -> Any:
        free = [name for name in "ABCDE" if name not in names]
        if not free:
            return "int"
        schema: dict[str, Any] = {"name": self.chance.choice(free)}
        names.add(schema["name"])
        if self.chance.random() < 0.3:
            schema["namespace"] = "x"
        aliases = self.chance.choice([None, None, ["A"], ["B", "x.C"], ["x.B"]])
        if aliases:
            schema["aliases"] = aliases
        draw = self.chance.random()
        if draw < 0.25:
            symbols = self.chance.sample("PQRS", self.chance.randint(1, 3))
            schema |= {"type": "enum", "symbols": symbols}
            if self.chance.random() < 0.3:
                schema["default"] = symbols[0]
        elif draw < 0.4:
            schema |= {"type": "fixed", "size": self.chance.choice([4, 8])}
        else:
            schema |= {
                "type": "record",
                "fields": [self._field(n, depth, names) for n in "fgh"[: int(draw * 4)]],
            }
        return schema

    def _field(self, name: str, depth: int, names: set[str]) -> dict[str, Any]:
        field: dict[str, Any] = {"name": name, "type": self.schema(depth - 1, names)}
        if self.chance.random() < 0.3:
            field["default"] = None
        if self.chance.random() < 0.2:
            field["aliases"] = [self.chance.choice("ijk")]
        return field

    def changed(self, schema: Any) -> Any:
        if isinstance(schema, str):
            draws = schema in PRIMITIVES and self.chance.random() < 0.15
            return self.chance.choice(PRIMITIVES) if draws else schema
        if isinstance(schema, list):
            return list({json.dumps(each): each for each in map(self.changed, schema)}.values())
        schema = dict(schema)
        for inner in ("items", "values"):
            if inner in schema:
                schema[inner] = self.changed(schema[inner])
        if "fields" in schema:
            fields = [{**field, "type": self.changed(field["type"])} for field in schema["fields"]]
            for field in fields:
                if self.chance.random() < 0.1:
                    field["name"] = self.chance.choice("ijk") + field["name"]
            if self.chance.random() < 0.2:
                del fields[:1]
            if self.chance.random() < 0.2:
                default = {"default": 1} if self.chance.random() < 0.5 else {}
                fields.append({"name": "z", "type": "int", **default})
            schema["fields"] = fields
        if "symbols" in schema and self.chance.random() < 0.3:
            schema["symbols"] = [*schema["symbols"], "T"]
        if "size" in schema and self.chance.random() < 0.2:
            schema["size"] = 16
        if "name" in schema and self.chance.random() < 0.1:
            schema["name"] = self.chance.choice("ABC")
        return schema

    def pair(self) -> tuple[str, str]:
        one = self.schema(3, set())
        other = self.changed(one) if self.chance.random() < 0.8 else self.schema(2, set())
        texts = [json.dumps(one), json.dumps(other)]
        self.chance.shuffle(texts)
        return texts[0], texts[1]


def test_schemas_are_kept_as_java_prints_them() -> None:
    maker = Maker(2)
    lines = [*TEXTS, *(maker.pair()[0] for _ in range(500))]
    compared = 0
    for text, theirs in zip(lines, verdicts(lines), strict=True):
        if theirs == "refused":
            continue
        try:
            assert avro_schema.parse(text, {}).text == theirs
            compared += 1
        except InvalidSchema:
            assert text not in TEXTS
    assert compared > 450


def test_avro_compatibility_equals_javas() -> None:
    maker = Maker(3)
    pairs = [maker.pair() for _ in range(PAIRS)]
    fitting = unfit = 0
    for (reader, writer), theirs in zip(pairs, verdicts(["\t".join(pair) for pair in pairs]), strict=True):
        try:
            found = avro_schema.unreadable(avro_schema.parse(reader, {}), avro_schema.parse(writer, {}))
        except InvalidSchema:
            continue  # names that are there twice; Java's Avro of 1.12 takes some of them
        if theirs == "refused":
            continue  # aliases that are names of other fields
        ours = " ".join(sorted({f"{each.kind}@{each.path}" for each in found})) or "ok"
        assert ours == theirs, f"{reader} reads {writer}"
        fitting, unfit = fitting + (ours == "ok"), unfit + (ours != "ok")
    assert fitting > 500
    assert unfit > 500
    assert fitting + unfit > PAIRS * 0.9
