"""The fields of a resource of Strimzi, each of which is converted or left out with a reason.

A conversion takes fields from an `Original`. Invariant: every leaf of it (a value, or an empty list or
mapping) is either taken or in `notes()`, also one that the conversion does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ottla_operator.resources.loading import problems_of

Path = tuple[str | int, ...]

NO_EQUIVALENT: Final = "there is no equivalent"
# Set by the API server, kubectl and Strimzi's operators: no part of what a user asks for.
_SERVER_SIDE: Final = frozenset(
    ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
)
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def path_text(path: Path) -> str:
    """A path as users write it: `spec.kafka.listeners[0].port`."""
    text = ""
    for part in path:
        if isinstance(part, int) or "." in part or "/" in part:
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def leaves(value: object, path: Path = ()) -> Iterator[Path]:
    """The paths of all values, and of all empty lists and mappings."""
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from leaves(each, (*path, str(name)))
    elif isinstance(value, list) and value:
        for n, each in enumerate(value):
            yield from leaves(each, (*path, n))
    else:
        yield path


@dataclass(frozen=True, slots=True)
class Note:
    """What becomes of a field: it is left out, or converted with a difference."""

    path: Path
    text: str
    left_out: bool = True

    def __str__(self) -> str:
        return f"{path_text(self.path)}: {'not converted: ' if self.left_out else ''}{self.text}"


@dataclass(slots=True)
class Original:
    """A resource of Strimzi, and which of its fields were converted."""

    content: Mapping[str, Any]
    taken: set[Path] = field(default_factory=set)
    reasons: dict[Path, str] = field(default_factory=dict)
    """Why leaves are left out; the default is NO_EQUIVALENT."""
    differences: list[Note] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.content.get("kind"))

    @property
    def name(self) -> str:
        return str(self.metadata.get("name", ""))

    @property
    def metadata(self) -> Mapping[str, Any]:
        found = self.content.get("metadata")
        return found if isinstance(found, Mapping) else {}

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"

    def wanted(self) -> dict[str, Any]:
        """What a user has written: the spec, and the metadata without what servers add."""
        metadata = {name: value for name, value in self.metadata.items() if name not in _SERVER_SIDE}
        annotations = {n: v for n, v in (metadata.get("annotations") or {}).items() if n != LAST_APPLIED}
        if "annotations" in metadata:
            metadata |= {"annotations": annotations}
        return {"metadata": metadata, "spec": self.content.get("spec") or {}}

    def field(self, *path: str | int) -> Field:
        """The field at a path; its value is None when it is missing."""
        found = Field(self, (), self.wanted())
        for part in path:
            found = found[part]
        return found

    def notes(self) -> list[Note]:
        """All fields that were left out, each once, and those that were converted with a difference."""
        wanted = self.wanted()
        left = [path for path in leaves(wanted) if path not in self.taken]
        shown: dict[Path, Note] = {}
        for path in left:
            reason = self.reasons.get(path, NO_EQUIVALENT)
            above = self._subtree(path, reason, wanted)
            shown.setdefault(above, Note(above, reason))
        return sorted((*shown.values(), *self.differences), key=lambda note: path_text(note.path))

    def _subtree(self, path: Path, reason: str, wanted: Mapping[str, Any]) -> Path:
        """The highest field above a leaf that is left out as a whole for the same reason."""
        for length in range(1, len(path)):
            above = Field(self, (), wanted)
            for part in path[:length]:
                above = above[part]
            below = list(leaves(above.value, above.path))
            if all(one not in self.taken and self.reasons.get(one, NO_EQUIVALENT) == reason for one in below):
                return above.path
        return path


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an original, with what is below it."""

    original: Original
    path: Path
    value: Any

    def __getitem__(self, name: str | int) -> Field:
        found = None
        if isinstance(name, str) and isinstance(self.value, Mapping):
            found = self.value.get(name)
        elif isinstance(name, int) and isinstance(self.value, list) and name < len(self.value):
            found = self.value[name]
        return Field(self.original, (*self.path, name), found)

    def __bool__(self) -> bool:
        """Whether the field is there."""
        return self.value is not None

    def fields(self) -> Iterator[tuple[str, Field]]:
        """The fields of a mapping."""
        if isinstance(self.value, Mapping):
            for name in self.value:
                yield str(name), self[str(name)]

    def items(self) -> Iterator[Field]:
        """The items of a list."""
        if isinstance(self.value, list):
            for n in range(len(self.value)):
                yield self[n]

    def without(self, name: str) -> Field:
        """The field without one of the fields below it."""
        return Field(self.original, self.path, {n: each.value for n, each in self.fields() if n != name})

    def take(self) -> Any:
        """The value, which is converted as a whole. A missing field has none, and is not noted."""
        if self:
            self.original.taken.update(leaves(self.value, self.path))
        return self.value

    def leave(self, reason: str) -> None:
        """Leave out all that is not taken yet, for a reason."""
        if self:
            for path in leaves(self.value, self.path):
                self.original.reasons.setdefault(path, reason)

    def give_up(self, reason: str) -> None:
        """Leave out all, also what was taken before."""
        if self:
            for path in leaves(self.value, self.path):
                self.original.taken.discard(path)
                self.original.reasons[path] = reason

    def differs(self, text: str) -> None:
        """Note that the field is converted with a difference."""
        if self:
            self.original.differences.append(Note(self.path, text, left_out=False))


def fitted(source: Field, model: type[BaseModel]) -> dict[str, Any]:
    """What a model takes of a mapping whose fields have the same names; the rest is left out. When the field
    `type` is not taken, nothing is: the other fields would have another meaning."""
    result: dict[str, Any] = {}
    known = {info.alias or name: info for name, info in model.model_fields.items()}
    for name, given in source.fields():
        if given.value is None:
            continue
        if name not in known:
            given.leave(NO_EQUIVALENT)
            continue
        inner = _model_in(known[name].annotation)
        if inner is not None and isinstance(given.value, Mapping):
            result[name] = fitted(given, inner)
        elif inner is not None and isinstance(given.value, list):
            result[name] = fitted_items(given, inner)
        elif problem := _problem(given.value, model, name):
            if name == "type":
                source.give_up(f"type {given.value!r}: {problem}")
                return {}
            given.leave(problem)
        else:
            result[name] = given.take()
    result = {name: value for name, value in result.items() if value not in ({}, [])}
    for name, info in known.items():
        if info.is_required() and name not in result:
            source.give_up(f"its {name} is not converted")
            return {}
    return result


def fitted_items(source: Field, model: type[BaseModel]) -> list[dict[str, Any]]:
    """What a model takes of the items of a list. An item is left out if only its name would be left of it."""
    result = []
    for item in source.items():
        part = fitted(item, model)
        if set(part) == {"name"} and set(item.value) > {"name"}:
            item.give_up("nothing but its name can be converted")
        elif part:
            result.append(part)
    return result


def _problem(value: object, model: type[BaseModel], alias: str) -> str:
    """Why a model's field does not take the value, or ""."""
    try:
        _validator(model, alias).validate_python(value)
    except ValidationError as error:
        return "; ".join(problem.message for problem in problems_of(error, BaseModel))
    return ""


@cache
def _validator(model: type[BaseModel], alias: str) -> TypeAdapter[Any]:
    (info,) = [info for name, info in model.model_fields.items() if (info.alias or name) == alias]
    annotation: Any = info.annotation
    for constraint in info.metadata:
        annotation = Annotated[annotation, constraint]
    lax = any(getattr(each, "strict", None) is False for each in info.metadata)
    return TypeAdapter(annotation, config=ConfigDict(strict=not lax))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that is one, an optional one or a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is dict:
        return None
    for argument in get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
