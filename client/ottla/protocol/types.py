"""Messages: field types, and the classes that are the schema table and the values.

A message class *is* its row in the protocol's table: each annotation gives a field's type, and each
`field(...)` the versions that carry it. Nothing is compiled when a class is created; `codec` derives an
encoder or a decoder from the table when a version is first used, and `__init__` is compiled at the
first construction, so importing all messages costs little more than unmarshalling their modules.

Called by `messages` (the table), `codec` (which compiles it), and where other schemas have the same form
(the coordinators' internal records). A module that declares messages must have
`from __future__ import annotations`: annotations are read as text.

Invariants: every field has a default, the one Kafka's message definitions give it; a default that is a
struct is one shared instance that refuses assignment (replace it, do not mutate it).
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, dataclass_transform
from uuid import UUID

Bool: TypeAlias = Annotated[bool, "bool"]
Int8: TypeAlias = Annotated[int, "int8"]
Int16: TypeAlias = Annotated[int, "int16"]
UInt16: TypeAlias = Annotated[int, "uint16"]
Int32: TypeAlias = Annotated[int, "int32"]
UInt32: TypeAlias = Annotated[int, "uint32"]
Int64: TypeAlias = Annotated[int, "int64"]
Float64: TypeAlias = Annotated[float, "float64"]
String: TypeAlias = Annotated[str, "string"]
Bytes: TypeAlias = Annotated[bytes, "bytes"]
Records: TypeAlias = Annotated[bytes | memoryview, "records"]
"""Record batches, opaque here. Decoded as a view of the input buffer, without a copy."""
Uuid: TypeAlias = Annotated[UUID, "uuid"]

ZERO_UUID = UUID(int=0)
"""The protocol's value for "no id"."""

HIGHEST_VERSION = 0x7FFF
NEVER = HIGHEST_VERSION + 1
"""`Message.flexible_from` of a message that has no flexible version."""

# The alias's name -> (the wire type, its default). Records have none: null.
_PRIMITIVES: dict[str, tuple[str, Any]] = {
    "Bool": ("bool", False),
    "Int8": ("int8", 0),
    "Int16": ("int16", 0),
    "UInt16": ("uint16", 0),
    "Int32": ("int32", 0),
    "UInt32": ("uint32", 0),
    "Int64": ("int64", 0),
    "Float64": ("float64", 0.0),
    "String": ("string", ""),
    "Bytes": ("bytes", b""),
    "Records": ("records", None),
    "Uuid": ("uuid", ZERO_UUID),
}


class Versions(NamedTuple):
    """An inclusive range of versions."""

    lowest: int
    highest: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Read `"3+"`, `"1-4"`, `"2"` or `"none"`."""
        if text == "none":
            return cls(NEVER, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), HIGHEST_VERSION)
        lowest, _, highest = text.partition("-")
        return cls(int(lowest), int(highest or lowest))


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


class FieldSpec:
    """The arguments of `field(...)`."""

    __slots__ = ("default", "flexible", "ignorable", "nullable", "tag", "versions")

    def __init__(
        self, versions: str, nullable: str, default: Any, ignorable: bool, tag: int | None, flexible: bool
    ) -> None:
        self.versions = versions
        self.nullable = nullable
        self.default = default
        self.ignorable = ignorable
        self.tag = tag
        self.flexible = flexible


def field(
    versions: str,
    *,
    nullable: str = "none",
    default: Any = UNSET,
    ignorable: bool = False,
    tag: int | None = None,
    flexible: bool = True,
) -> Any:
    """Declare a field of a `Struct` or `Message`.

    `versions` carry the field; in those of `nullable` it may be None. `default` is the value in versions
    without the field (unset: the type's zero). A version that lacks the field can be encoded only
    if the value is the default, or if the field is `ignorable`. With a `tag`, the field travels among the
    tagged fields (KIP-482) in all its versions. `flexible=False` keeps the old length prefix in flexible
    versions too (the request header's client id).
    """
    return FieldSpec(versions, nullable, default, ignorable, tag, flexible)


class FieldType(NamedTuple):
    """A resolved annotation: `wire` is a primitive's name, "struct" or "array"."""

    wire: str
    struct: type[Struct] | None = None
    element: FieldType | None = None


class Field(NamedTuple):
    """One resolved field of the table."""

    name: str
    type: FieldType
    versions: Versions
    nullable: Versions
    default: Any
    ignorable: bool
    tag: int | None
    flexible: bool


@dataclass_transform(kw_only_default=True)
class StructMeta(type):
    """Collects the fields of a class body, and gives the class a slot for each."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int | None = None,
        versions: str = "",
        flexible: str = "none",
    ) -> StructMeta:
        specs = {key: value for key, value in namespace.items() if type(value) is FieldSpec}
        for key in specs:
            del namespace[key]
        if specs:
            annotations = namespace.get("__annotations__", {})
            missing = [key for key in specs if key not in annotations]
            if missing:
                raise TypeError(f"{name}: fields without a type: {', '.join(missing)}")
            namespace["_specs"] = specs
        namespace.setdefault("__slots__", tuple(specs))
        cls = super().__new__(mcls, name, bases, namespace)
        if versions:
            valid = Versions.parse(versions)
            from_version = Versions.parse(flexible).lowest
            own: Any = cls
            own.api_key = -1 if api_key is None else api_key
            own.min_version = valid.lowest
            own.max_version = valid.highest
            own.flexible_from = from_version
            own._encoders = {}
            own._decoders = {}
            own._counting_decoders = {}
            own._step_decoders = {}
            own._step_encoders = {}
        return cls

    # The class statement's keywords are ours; `type.__init__` must not see them.
    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, namespace)


class Struct(metaclass=StructMeta):
    """A group of fields inside a message. Constructed by keyword; equal when all fields are."""

    __slots__ = ()

    _specs: ClassVar[dict[str, FieldSpec]] = {}

    def __init__(self, **values: Any) -> None:
        # First construction of this class: compile the straight-line initializer, and use that from now on.
        cls = canonical(type(self))
        initializer = _compile_init(cls)
        cls.__init__ = initializer  # type: ignore[method-assign]
        initializer(self, **values)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) and (
            not isinstance(other, Struct) or canonical(type(self)) is not canonical(type(other))
        ):
            return NotImplemented
        for name in self._specs:  # noqa: SIM110 - on the hot path: a generator would cost as much again
            if getattr(self, name) != getattr(other, name):
                return False
        return True

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._specs)
        return f"{canonical(type(self)).__qualname__}({shown})"


class Message(Struct):
    """A request, a response, or any other schema with versions of its own."""

    __slots__ = ()

    api_key: ClassVar[int]
    min_version: ClassVar[int]
    max_version: ClassVar[int]
    flexible_from: ClassVar[int]
    counted_from_bytes: ClassVar[int] = 2**21
    """Elements are counted in larger inputs."""
    elements_max: ClassVar[int] = 2**21
    """The limit of their elements (`wire.ELEMENTS_MAX`)."""
    _encoders: ClassVar[dict[int, Any]]
    _decoders: ClassVar[dict[int, Any]]
    _counting_decoders: ClassVar[dict[int, Any]]
    """The decoder for inputs whose elements have to be counted; see `codec`."""
    _step_decoders: ClassVar[dict[int, Any]]
    _step_encoders: ClassVar[dict[int, Any]]


def canonical(cls: type[Struct]) -> type[Struct]:
    """The declared class of a value: a shared default's own class is a read-only subclass of it."""
    return cls.__base__ if "_is_default" in cls.__dict__ else cls  # type: ignore[return-value]


def fields_of(cls: type[Struct]) -> tuple[Field, ...]:
    """The resolved fields of `cls`, in the order of the wire."""
    cls = canonical(cls)
    resolved: tuple[Field, ...] | None = cls.__dict__.get("_fields")
    if resolved is None:
        resolved = tuple(_resolve(cls, name, spec) for name, spec in cls._specs.items())
        cls._fields = resolved  # type: ignore[attr-defined]
    return resolved


def default_of(cls: type[Struct]) -> Any:
    """The one shared, read-only instance of `cls` with every field at its default."""
    default = cls.__dict__.get("_default")
    if default is None:
        frozen: Any = StructMeta(
            cls.__name__,
            (cls,),
            {
                "__slots__": (),
                "__setattr__": _refuse_assignment,
                "_is_default": True,
                "__module__": cls.__module__,
            },
        )
        default = object.__new__(frozen)
        for item in fields_of(cls):
            object.__setattr__(default, item.name, _fresh(item.default))
        cls._default = default  # type: ignore[attr-defined]
    return default


def _refuse_assignment(self: Struct, name: str, value: object) -> None:
    kind = canonical(type(self)).__qualname__
    raise AttributeError(
        f"{kind}.{name}: this is the shared default; assign a {kind}(...) of your own instead"
    )


def _fresh(default: Any) -> Any:
    return [] if isinstance(default, list) else default


def _resolve(cls: type[Struct], name: str, spec: FieldSpec) -> Field:
    annotation = cls.__annotations__[name]
    where = f"{cls.__qualname__}.{name}"
    if not isinstance(annotation, str):
        raise TypeError(f"{where}: its module needs `from __future__ import annotations`")
    declared_nullable = annotation.endswith(" | None")
    kind, default = _resolve_type(cls, annotation.removesuffix(" | None"))
    if spec.default is not UNSET:
        default = spec.default
    nullable = Versions.parse(spec.nullable)
    may_be_none = spec.nullable != "none" or default is None
    if declared_nullable != may_be_none:
        raise TypeError(f"{where}: its annotation and its nullable versions or default disagree")
    return Field(
        name, kind, Versions.parse(spec.versions), nullable, default, spec.ignorable, spec.tag, spec.flexible
    )


def _resolve_type(cls: type[Struct], text: str) -> tuple[FieldType, Any]:
    primitive = _PRIMITIVES.get(text)
    if primitive is not None:
        return FieldType(primitive[0]), primitive[1]
    if text.startswith("list["):
        return FieldType("array", None, _resolve_type(cls, text[5:-1])[0]), []
    found: Any = sys.modules[cls.__module__]
    for part in text.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Struct)):
        raise TypeError(f"{cls.__qualname__}: {text} is neither a wire type nor a Struct")
    return FieldType("struct", found), default_of(found)


def _compile_init(cls: type[Struct]) -> Any:
    """An `__init__` for `cls` in straight lines: twice as fast as a loop over keywords."""
    parameters = []
    lines = []
    namespace: dict[str, Any] = {"UNSET": UNSET}
    for item in fields_of(cls):
        name = item.name
        if isinstance(item.default, list):
            parameters.append(f"{name}=UNSET")
            lines.append(f"    self.{name} = [] if {name} is UNSET else {name}")
        else:
            namespace[f"_d_{name}"] = item.default
            parameters.append(f"{name}=_d_{name}")
            lines.append(f"    self.{name} = {name}")
    signature = ", ".join(["self", "*", *parameters] if parameters else ["self"])
    source = f"def __init__({signature}):\n" + ("\n".join(lines) or "    pass")
    exec(source, namespace)
    initializer = namespace["__init__"]
    initializer.__qualname__ = f"{cls.__qualname__}.__init__"
    return initializer
