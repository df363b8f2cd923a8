"""Generates encoders from the table: one straight-line function per message class and version.

Called by `codec` alone, once per class and version, when first used. An encoder appends parts to a list,
adjacent fixed-size fields packed into one of them, and record batches as they are. A value that a
version has no field for is an error; `codec` finds the field of a value that `struct` rejects.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ottla.protocol.source import FunctionSource
from ottla.protocol.types import Field, FieldType, Message, Struct, fields_of
from ottla.protocol.wire import (
    FIXED,
    STRING_BYTES_MAX,
    VARINTS,
    refuse_absent,
    refuse_long,
    refuse_null,
    write_varint,
)


class _Encoder(FunctionSource):
    def __init__(self, message: type[Message], version: int, *, in_steps: bool) -> None:
        super().__init__(message, version, in_steps=in_steps)
        self.namespace.update(
            varint=write_varint,
            V=VARINTS,
            pack=struct.pack,
            absent=refuse_absent,
            null=refuse_null,
            long=refuse_long,
        )
        self.out = "out"
        self.pieces: list[str] = []
        self.run: list[tuple[str, str]] = []

    def fixed(self, wire_format: str, expression: str = "") -> None:
        self.run.append((wire_format, expression))

    def end_run(self) -> None:
        if self.run:
            run, self.run = self.run, []
            if all(wire_format == "x" for wire_format, _ in run):
                self.pieces.append(repr(bytes(len(run))))
                return
            writer = self.packer([wire_format for wire_format, _ in run], "pack")
            arguments = ", ".join(expression for wire_format, expression in run if wire_format != "x")
            self.pieces.append(f"{writer}({arguments})")

    def piece(self, expression: str) -> None:
        self.end_run()
        self.pieces.append(expression)

    def flush(self) -> None:
        """Write what is pending, before control flow branches."""
        self.end_run()
        pieces, self.pieces = self.pieces, []
        if len(pieces) == 1:
            self.line(f"{self.out}.append({pieces[0]})")
        elif pieces:
            self.line(f"{self.out} += ({', '.join(pieces)})")

    def structure(self, cls: type[Struct], value: str) -> None:
        outer = self.path
        for item in fields_of(cls):
            self.path = f"{outer}.{item.name}" if outer else item.name
            if self.version in item.versions:
                if item.tag is None:
                    self.value(item.type, item, f"{value}.{item.name}")
            elif not item.ignorable:
                self.require_default(item, f"{value}.{item.name}")
        self.path = outer
        if self.flexible:
            self.tagged_fields(self.tagged(cls), value)

    def require_default(self, item: Field, value: str) -> None:
        default = self.default_expression(item)
        check = f"{value} is not None" if item.default is None else f"{value} != {default}"
        if item.type.wire == "struct" and item.default is not None:
            check = f"{value} is not {default} and {check}"
        self.line(f"if {check}: absent({self.path!r})")

    def value(self, kind: FieldType, item: Field | None, value: str) -> None:
        nullable = item is not None and self.version in item.nullable
        wire = kind.wire
        if wire == "uuid":
            self.fixed("16s", f"{value}.bytes")
        elif wire in FIXED:
            self.fixed(FIXED[wire], value)
        elif wire == "struct":
            self.nested(kind, value, nullable)
        elif wire == "array":
            self.array(kind, item, value, nullable)
        else:
            self.blob(wire, item, value, nullable)

    def nested(self, kind: FieldType, value: str, nullable: bool) -> None:
        assert kind.struct is not None
        local = self.name("o")
        self.line(f"{local} = {value}")
        if not nullable:
            self.line(f"if {local} is None: null({self.path!r})")
            self.structure(kind.struct, local)
            return
        self.flush()
        self.line(f"if {local} is None: {self.out}.append(b'\\xff')")
        self.line("else:")
        self.indent += 1
        self.piece("b'\\x01'")
        self.structure(kind.struct, local)
        self.flush()
        self.indent -= 1

    def length(self, item: Field | None, wire: str, length: str) -> None:
        """Write a length or count, held in the local `length`, -1 for null."""
        if self.uses_varints(item):
            self.piece(f"V[{length} + 1] if {length} < 127 else varint({length} + 1)")
        else:
            self.fixed("h" if wire == "string" else "i", length)

    def blob(self, wire: str, item: Field | None, value: str, nullable: bool) -> None:
        blob, length = self.name("b"), self.name("n")
        encoded = f"{blob}.encode()" if wire == "string" else blob
        self.line(f"{blob} = {value}")
        if nullable:
            self.line(f"if {blob} is None: {blob} = b''; {length} = -1")
            self.line(f"else: {blob} = {encoded}; {length} = len({blob})")
        else:
            self.line(f"if {blob} is None: null({self.path!r})")
            if wire == "string":
                self.line(f"{blob} = {encoded}")
            self.line(f"{length} = len({blob})")
        if wire == "string":
            self.line(f"if {length} > {STRING_BYTES_MAX}: long({self.path!r}, {length})")
        self.length(item, wire, length)
        self.piece(blob)

    def array(self, kind: FieldType, item: Field | None, value: str, nullable: bool) -> None:
        assert kind.element is not None
        element = kind.element
        values, count = self.name("a"), self.name("n")
        self.line(f"{values} = {value}")
        if nullable:
            self.line(f"if {values} is None: {values} = (); {count} = -1")
            self.line(f"else: {count} = len({values})")
        else:
            self.line(f"if {values} is None: null({self.path!r})")
            self.line(f"{count} = len({values})")
        self.length(item, "array", count)
        if element.wire in FIXED and element.wire != "uuid":
            self.piece(f"pack(f'>{{len({values})}}{FIXED[element.wire]}', *{values})")
            return
        self.flush()
        local = self.name("o")
        outer, self.path = self.path, f"{self.path}[]"
        self.line(f"for {local} in {values}:")
        self.indent += 1
        if element.wire == "struct":
            assert element.struct is not None
            self.structure(element.struct, local)
        else:
            self.value(element, None, local)
        self.flush()
        self.step()
        self.indent -= 1
        self.path = outer

    def tagged_fields(self, tagged: list[Field], value: str) -> None:
        if not tagged:
            self.fixed("x")
            return
        self.flush()
        outer, outer_out = self.path, self.out
        tags, count = self.name("t"), self.name("n")
        self.line(f"{tags} = []")
        self.line(f"{count} = 0")
        for item in tagged:
            self.path = f"{outer}.{item.name}" if outer else item.name
            local = self.name("v")
            self.line(f"{local} = {value}.{item.name}")
            self.line(f"if {self.differs(item, local)}:")
            self.indent += 1
            self.out = self.name("p")
            self.line(f"{self.out} = []")
            self.value(item.type, item, local)
            self.flush()
            body = self.name("b")
            self.line(f"{body} = b''.join({self.out})")
            self.line(f"{tags} += ({write_varint(item.tag or 0)!r}, varint(len({body})), {body})")
            self.line(f"{count} += 1")
            self.indent -= 1
            self.out = outer_out
        self.path = outer
        self.line(f"if {count}:")
        self.line(f"    {self.out}.append(varint({count}))")
        self.line(f"    {self.out} += {tags}")
        self.line("else:")
        self.line(f"    {self.out}.append(b'\\0')")

    def differs(self, item: Field, local: str) -> str:
        default = self.default_expression(item)
        if item.default is None:
            return f"{local} is not None"
        if item.type.wire == "struct":
            return f"{local} is not {default} and {local} != {default}"
        return f"{local} != {default}"


def compile_encoder(message: type[Message], version: int, *, in_steps: bool = False) -> Callable[..., Any]:
    """`encode(m, out)` for one version of `message`: appends the parts to the list `out`. `in_steps`, a
    generator that does so; what it has appended before it yields may be taken away."""
    source = _Encoder(message, version, in_steps=in_steps)
    source.structure(message, "m")
    source.flush()
    if not source.lines:
        source.line("pass")
    return source.compile("encode(m, out)", f"encode {message.__name__} v{version}")
