"""A function under construction: its lines, the field each line handles, and the names it uses.

Shared by `decoding` and `encoding`. Nested structs are handled inline, so one function handles a whole
message; `PATHS` among its globals maps line numbers to field paths, from which `codec` finds the malformed
field, at no cost without an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ottla.protocol.types import Field, FieldType, Message, Struct, fields_of
from ottla.protocol.wire import FIXED, SIZES, STEP_ELEMENTS


class FunctionSource:
    """Lines of a function under construction, each with the path of the field it handles."""

    def __init__(self, message: type[Message], version: int, *, in_steps: bool = False) -> None:
        """`in_steps` makes the function a generator, which yields after every STEP_ELEMENTS elements."""
        self.version = version
        self.in_steps = in_steps
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

    def first_line(self, text: str) -> None:
        self.lines.insert(0, f"    {text}")
        self.paths.insert(0, "")

    def step(self) -> None:
        """Emit the end of an array element."""
        if self.in_steps:
            self.line("done += 1")
            self.line(f"if done == {STEP_ELEMENTS}: done = 0; yield")

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
        if self.in_steps:
            self.first_line("done = 0; yield")
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
        """The least bytes of a value; it limits the count of an array."""
        if kind.wire in FIXED:
            return SIZES[FIXED[kind.wire]]
        if kind.wire == "struct":
            assert kind.struct is not None
            if item is not None and self.version in item.nullable:
                return 1
            inner = sum(self.least_size(each.type, each) for each in self.present(kind.struct))
            return inner + (1 if self.flexible else 0)
        if self.uses_varints(item):
            return 1
        return 2 if kind.wire == "string" else 4
