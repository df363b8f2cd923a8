"""Turns the table into Python: one straight-line encoder or decoder per message class and version.

Called by `codec` alone, once per (class, version, direction) and only when first used. The generated
functions visit nested structs inline, fuse adjacent fixed-size fields (and the length prefixes and tag
counts that border on them) into one precompiled `struct.Struct`, and build objects without `__init__`.

Invariants of a generated decoder: the position only grows; an array's count is checked against the bytes
that are left before anything is allocated; nothing outside the buffer is read. It carries a map from its
line numbers to field paths, from which `codec` tells where a message was malformed, at no cost until then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from uuid import UUID

from ottla.protocol.types import (
    ZERO_UUID,
    Field,
    FieldType,
    Message,
    Struct,
    fields_of,
)

_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
LONGEST_STRING = 0x7FFF
"""In bytes of UTF-8. Flexible versions could carry longer ones, but Kafka refuses them there too."""
_SIZES = {"?": 1, "b": 1, "B": 1, "x": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}


class Malformed(ValueError):
    """Raised inside generated decoders; `codec` turns it into `MalformedMessage` with the place."""


# ---- what generated code calls -----------------------------------------------------------------------


def read_varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits: its value and the position after it."""
    byte = buffer[position]
    if byte < 128:
        return byte, position + 1
    return continue_varint(buffer, position + 1, byte)


def continue_varint(buffer: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte is known to have the continuation bit."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                raise Malformed("varint does not fit 32 bits")
            return value, position
    raise Malformed("varint longer than 5 bytes")


_VARINT1 = tuple(bytes((value,)) for value in range(128))


def write_varint(value: int) -> bytes:
    """`value` (at least 0, below 2**32) as an unsigned varint."""
    if value < 128:
        return _VARINT1[value]
    parts = bytearray()
    while value > 127:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


@lru_cache(maxsize=4096)
def _uuid_of(data: bytes) -> UUID:
    # Topic ids repeat in every request, and UUID's own constructor takes over a microsecond.
    return UUID(bytes=data) if any(data) else ZERO_UUID


# ---- what both directions share ----------------------------------------------------------------------


class _Source:
    """Lines of a function under construction, each with the path of the field it handles."""

    def __init__(self, message: type[Message], version: int) -> None:
        self.version = version
        self.flexible = version >= message.flexible_from
        self.lines: list[str] = []
        self.paths: list[str] = []
        self.indent = 1
        self.path = ""
        self.namespace: dict[str, Any] = {}
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)
        self.paths.append(self.path)

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, value: Any, prefix: str = "K") -> str:
        for known, existing in self.namespace.items():
            if existing is value:
                return known
        chosen = self.name(prefix)
        self.namespace[chosen] = value
        return chosen

    def packer(self, formats: list[str], method: str) -> str:
        """The name of the bound method of a Struct for these formats."""
        key = f"{method[0].upper()}_{''.join(formats).replace('?', 'o')}"
        if key not in self.namespace:
            self.namespace[key] = getattr(struct.Struct(">" + "".join(formats)), method)
        return key

    def uses_varints(self, item: Field | None) -> bool:
        return self.flexible and (item is None or item.flexible)

    def default_expression(self, item: Field) -> str:
        default = item.default
        if isinstance(default, list):
            return "[]"
        if default is None or isinstance(default, (bool, int, str, bytes)):
            return repr(default)
        return self.constant(default)

    def compile(self, signature: str, title: str) -> Callable[..., Any]:
        source = f"def {signature}:\n" + "\n".join(self.lines) + "\n"
        self.namespace["PATHS"] = ("", *self.paths)
        exec(compile(source, f"<{title}>", "exec"), self.namespace)
        function: Callable[..., Any] = self.namespace[signature.partition("(")[0]]
        return function

    def present(self, cls: type[Struct]) -> list[Field]:
        return [item for item in fields_of(cls) if self.version in item.versions and item.tag is None]

    def tagged(self, cls: type[Struct]) -> list[Field]:
        if not self.flexible:
            return []
        found = [item for item in fields_of(cls) if self.version in item.versions and item.tag is not None]
        return sorted(found, key=lambda item: item.tag or 0)

    def least_size(self, kind: FieldType, item: Field | None = None) -> int:
        """The fewest bytes a value takes; what bounds an array's count."""
        if kind.wire in _FIXED:
            return _SIZES[_FIXED[kind.wire]]
        if kind.wire == "struct":
            assert kind.struct is not None
            if item is not None and self.version in item.nullable:
                return 1
            inner = sum(self.least_size(each.type, each) for each in self.present(kind.struct))
            return inner + (1 if self.flexible else 0)
        if self.uses_varints(item):
            return 1
        return 2 if kind.wire == "string" else 4


# ---- decoding ----------------------------------------------------------------------------------------


class _Decoder(_Source):
    def __init__(self, message: type[Message], version: int) -> None:
        super().__init__(message, version)
        self.namespace.update(
            Malformed=Malformed,
            new=object.__new__,
            more=continue_varint,
            varint=read_varint,
            uuid=_uuid_of,
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
        size = sum(_SIZES[wire_format] for wire_format, _ in run)
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
        if wire in _FIXED:
            self.fixed(_FIXED[wire], target)
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
                    f"if {length} > {LONGEST_STRING}: raise Malformed('string longer than 32767 bytes')"
                )
            self.line(f"{target} = str(buf[pos:{end}], 'utf-8')")
        elif wire == "bytes":
            self.line(f"{target} = bytes(buf[pos:{end}])")
        else:
            self.line(f"{target} = memoryview(buf)[pos:{end}]")
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
        if element.wire in _FIXED and element.wire != "uuid":
            self.line(f"{target} = list(unpack('>' + str({count}) + {_FIXED[element.wire]!r}, buf, pos))")
            self.line(f"pos += {count} * {_SIZES[_FIXED[element.wire]]}")
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
        # A count of billions ends at the buffer's end: each round reads two bytes at least.
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
        self.indent -= 2
        self.path = outer


def compile_decoder(message: type[Message], version: int) -> Callable[..., Any]:
    """`decode(buf, pos, size) -> (message, end)` for one version of `message`."""
    source = _Decoder(message, version)
    source.structure(message, "o")
    source.flush()
    source.line("return o, pos")
    return source.compile("decode(buf, pos, size)", f"decode {message.__name__} v{version}")


# ---- encoding ----------------------------------------------------------------------------------------


class _Encoder(_Source):
    def __init__(self, message: type[Message], version: int) -> None:
        super().__init__(message, version)
        self.namespace.update(
            varint=write_varint,
            V=_VARINT1,
            pack=struct.pack,
            absent=_refuse_absent,
            null=_refuse_null,
            long=_refuse_long,
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
        elif wire in _FIXED:
            self.fixed(_FIXED[wire], value)
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
            self.line(f"if {length} > {LONGEST_STRING}: long({self.path!r}, {length})")
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
        if element.wire in _FIXED and element.wire != "uuid":
            self.piece(f"pack(f'>{{len({values})}}{_FIXED[element.wire]}', *{values})")
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


class Unencodable(ValueError):
    """Raised inside generated encoders, with the field's path and what is wrong with its value."""


def _refuse_absent(path: str) -> None:
    raise Unencodable(f"{path} is set, but this version does not carry it")


def _refuse_null(path: str) -> None:
    raise Unencodable(f"{path} is None, which this version does not allow")


def _refuse_long(path: str, size: int) -> None:
    raise Unencodable(f"{path} has {size} bytes; at most {LONGEST_STRING} can be sent")


def compile_encoder(message: type[Message], version: int) -> Callable[..., None]:
    """`encode(m, out)` for one version of `message`: appends the parts to the list `out`."""
    source = _Encoder(message, version)
    source.structure(message, "m")
    source.flush()
    if not source.lines:
        source.line("pass")
    return source.compile("encode(m, out)", f"encode {message.__name__} v{version}")
