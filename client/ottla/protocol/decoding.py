"""Generates decoders from the table: one straight-line function per message class and version.

Called by `codec` alone, once per class and version, when first used. Adjacent fixed-size fields, and the
length prefixes and tag counts that border on them, are read with one precompiled `struct.Struct`; objects
are built without their `__init__`.

Invariants of a generated decoder: the position only grows; an array's count is checked against the bytes
that are left before anything is allocated; nothing outside the buffer is read; and in a decoder for large
buffers, no more than `ELEMENTS_MAX` array elements and tagged fields are gone through in one message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ottla.protocol.source import FunctionSource
from ottla.protocol.types import Field, FieldType, Message, Struct, fields_of
from ottla.protocol.wire import (
    FIXED,
    SIZES,
    STEP_INTEGERS,
    STRING_BYTES_MAX,
    Malformed,
    TooMany,
    continue_varint,
    read_varint,
    uuid_of,
)


class _Decoder(FunctionSource):
    def __init__(
        self, message: type[Message], version: int, most_elements: int | None, *, in_steps: bool
    ) -> None:
        super().__init__(message, version, in_steps=in_steps)
        self.most_elements = most_elements
        self.has_records = False
        self.namespace.update(
            Malformed=Malformed,
            TooMany=TooMany,
            new=object.__new__,
            more=continue_varint,
            varint=read_varint,
            uuid=uuid_of,
            unpack=struct.unpack_from,
        )
        self.run: list[tuple[str, str]] = []
        self.run_path = ""

    def fixed(self, wire_format: str, target: str) -> None:
        if not self.run:
            self.run_path = self.path
        self.run.append((wire_format, target))

    def flush(self) -> None:
        """Read the pending fixed-size values at once."""
        if not self.run:
            return
        run, self.run = self.run, []
        here, self.path = self.path, self.run_path
        size = sum(SIZES[wire_format] for wire_format, _ in run)
        if run[0][0] == "B" and len(run) == 1:
            self.line(f"{run[0][1]} = buf[pos]")
        else:
            reader = self.packer([wire_format for wire_format, _ in run], "unpack_from")
            targets = ", ".join(target for _, target in run)
            self.line(f"{targets}{',' if len(run) == 1 else ''} = {reader}(buf, pos)")
        self.line(f"pos += {size}")
        for wire_format, target in run:
            if wire_format == "16s":
                self.line(f"{target} = uuid({target})")
        self.path = here

    def length(self, item: Field | None, wire: str) -> str:
        """Read a length or count into a local (None is -1); everything pending is read with it."""
        target = self.name("n")
        if self.uses_varints(item):
            self.fixed("B", target)
            self.flush()
            self.line(f"if {target} > 127: {target}, pos = more(buf, pos, {target})")
            self.line(f"{target} -= 1")
        else:
            self.fixed("h" if wire == "string" else "i", target)
            self.flush()
        return target

    def refuse_null(self, length: str) -> None:
        self.line(f"if {length} < 0: raise Malformed('null where this version allows none')")

    def charge(self, count: str) -> None:
        """Count `count` elements, where they are counted; what is left is in the local `left`."""
        if self.most_elements is not None:
            self.line(f"left -= {count}")
            complaint = f"more than {self.most_elements} elements in one message"
            self.line(f"if left < 0: raise TooMany({complaint!r})")

    def structure(self, cls: type[Struct], target: str) -> None:
        """Decode a struct into the local `target`; ends with reads possibly pending."""
        self.flush()
        self.line(f"{target} = new({self.constant(cls, 'C')})")
        outer = self.path
        tagged = self.tagged(cls)
        present = self.present(cls)
        for item in fields_of(cls):
            if item not in present:
                self.line(f"{target}.{item.name} = {self.default_expression(item)}")
        for item in present:
            self.path = f"{outer}.{item.name}" if outer else item.name
            self.value(item.type, item, f"{target}.{item.name}")
        self.path = outer
        if self.flexible:
            self.tagged_fields(tagged, target)

    def value(self, kind: FieldType, item: Field | None, target: str) -> None:
        nullable = item is not None and self.version in item.nullable
        wire = kind.wire
        if wire in FIXED:
            self.fixed(FIXED[wire], target)
        elif wire == "struct":
            self.nested(kind, target, nullable)
        elif wire == "array":
            self.array(kind, item, target, nullable)
        else:
            self.blob(wire, item, target, nullable)

    def nested(self, kind: FieldType, target: str, nullable: bool) -> None:
        assert kind.struct is not None
        local = self.name("o")
        if nullable:
            marker = self.name("n")
            self.fixed("b", marker)
            self.flush()
            self.line(f"if {marker} < 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        self.structure(kind.struct, local)
        if nullable:
            self.flush()
        self.line(f"{target} = {local}")
        if nullable:
            self.indent -= 1

    def blob(self, wire: str, item: Field | None, target: str, nullable: bool) -> None:
        length = self.length(item, wire)
        if nullable:
            self.line(f"if {length} < 0: {target} = None")
            self.line("else:")
            self.indent += 1
        else:
            self.refuse_null(length)
        end = self.name("e")
        self.line(f"{end} = pos + {length}")
        self.line(f"if {end} > size: raise Malformed('length ' + str({length}) + ' runs past the end')")
        if wire == "string":
            if self.uses_varints(item):
                self.line(
                    f"if {length} > {STRING_BYTES_MAX}: raise Malformed('string longer than 32767 bytes')"
                )
            self.line(f"{target} = str(buf[pos:{end}], 'utf-8')")
        elif wire == "bytes":
            self.line(f"{target} = bytes(buf[pos:{end}])")
        else:
            self.has_records = True
            self.line(f"{target} = view[pos:{end}]")
        self.line(f"pos = {end}")
        if nullable:
            self.indent -= 1

    def array(self, kind: FieldType, item: Field | None, target: str, nullable: bool) -> None:
        assert kind.element is not None
        element = kind.element
        count = self.length(item, "array")
        if nullable:
            self.line(f"if {count} < 0: {target} = None")
            self.line("else:")
            self.indent += 1
        else:
            self.refuse_null(count)
        least = max(1, self.least_size(element))
        scaled = count if least == 1 else f"{count} * {least}"
        self.line(f"if {scaled} > size - pos: raise Malformed(str({count}) + ' elements cannot be left')")
        self.charge(count)
        if element.wire in FIXED and element.wire != "uuid":
            letter = FIXED[element.wire]
            if self.in_steps:
                some = self.name("a")
                self.line(f"{some} = []")
                self.line(f"while {count} > {STEP_INTEGERS}:")
                self.line(f"    {some} += unpack('>{STEP_INTEGERS}{letter}', buf, pos)")
                self.line(f"    pos += {STEP_INTEGERS * SIZES[letter]}; {count} -= {STEP_INTEGERS}; yield")
                self.line(f"{some} += unpack('>' + str({count}) + {letter!r}, buf, pos)")
                self.line(f"{target} = {some}")
            else:
                self.line(f"{target} = list(unpack('>' + str({count}) + {letter!r}, buf, pos))")
            self.line(f"pos += {count} * {SIZES[letter]}")
        else:
            values, local = self.name("a"), self.name("o")
            outer, self.path = self.path, f"{self.path}[]"
            self.line(f"{target} = {values} = []")
            self.line(f"for _ in range({count}):")
            self.indent += 1
            if element.wire == "struct":
                assert element.struct is not None
                self.structure(element.struct, local)
            else:
                self.value(element, None, local)
            self.flush()
            self.line(f"{values}.append({local})")
            self.step()
            self.indent -= 1
            self.path = outer
        if nullable:
            self.indent -= 1

    def tagged_fields(self, tagged: list[Field], target: str) -> None:
        outer = self.path
        self.path = f"{outer}.<tagged fields>" if outer else "<tagged fields>"
        count, tag, end = self.name("n"), self.name("t"), self.name("e")
        self.fixed("B", count)
        self.flush()
        self.line(f"if {count}:")
        self.indent += 1
        self.line(f"if {count} > 127: {count}, pos = more(buf, pos, {count})")
        # A count of billions stops at the end of the buffer: each iteration reads at least two bytes.
        self.charge(count)
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.line(f"{tag}, pos = varint(buf, pos)")
        self.line(f"{end}, pos = varint(buf, pos)")
        self.line(f"{end} += pos")
        self.line(f"if {end} > size: raise Malformed('tagged field runs past the end')")
        word = "if"
        for item in tagged:
            self.path = f"{outer}.{item.name}" if outer else item.name
            self.line(f"{word} {tag} == {item.tag}:")
            self.indent += 1
            self.value(item.type, item, f"{target}.{item.name}")
            self.flush()
            self.line(f"if pos != {end}: raise Malformed('tagged field is not as long as it says')")
            self.indent -= 1
            word = "elif"
        if tagged:
            self.line("else:")
            self.line(f"    pos = {end}")
        else:
            self.line(f"pos = {end}")
        self.step()
        self.indent -= 2
        self.path = outer


def compile_decoder(
    message: type[Message], version: int, most_elements: int | None = None, *, in_steps: bool = False
) -> Callable[..., Any]:
    """`decode(buf, pos, size) -> (message, end)` for one version of `message`; `in_steps`, a generator of it.

    With `most_elements`, it counts array elements and tagged fields, and refuses a message that has more.
    """
    source = _Decoder(message, version, most_elements, in_steps=in_steps)
    source.structure(message, "o")
    source.flush()
    if source.has_records:
        source.first_line("view = memoryview(buf)")
    if most_elements is not None:
        source.first_line(f"left = {most_elements}")
    source.line("return o, pos")
    return source.compile("decode(buf, pos, size)", f"decode {message.__name__} v{version}")
