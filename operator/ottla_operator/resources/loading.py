"""Loads custom resources from YAML files and validates them, resource by resource.

Called by `ottla up`; the Kubernetes store uses `parse_resource` and `status_with`. Invariants: an invalid
resource or file does not affect others; a problem names file, document, resource and field; a status may have
fields of a newer version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ottla_operator.conditions import Finding, merge, no, unknown
from ottla_operator.resources import API_VERSION, KINDS, AnyResource, Problem
from ottla_operator.resources.common import Status


@dataclass(frozen=True, slots=True)
class Source:
    """The position of a resource: a file, and the number of the document in it (from 1)."""

    file: Path
    document: int

    def __str__(self) -> str:
        return f"{self.file} (document {self.document})"


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document with a known kind and a name: a valid resource, or one with problems."""

    source: Source
    kind: str
    name: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of a folder. `errors` belong to no resource: unreadable files, unknown kinds."""

    documents: tuple[Document, ...]
    errors: tuple[str, ...]
    unreadable: frozenset[Path]
    """Files that could not be read; their resources are not considered deleted."""


def load_folder(folder: Path) -> Loaded:
    """Load every *.yaml and *.yml in the folder, without subfolders as kubectl does, or the given file."""
    if folder.is_file():
        return load_files([folder])
    files = sorted(
        path
        for path in folder.glob("*")
        if path.suffix in (".yaml", ".yml") and not path.name.startswith(".") and path.is_file()
    )
    return load_files(files)


def load_files(files: Iterable[Path]) -> Loaded:
    documents: list[Document] = []
    errors: list[str] = []
    unreadable: set[Path] = set()
    seen: dict[str, Source] = {}
    for file in files:
        try:
            parsed = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
        except Exception as error:
            # Any type: PyYAML raises ValueError for 2020-99-99 and KeyError for `!!bool maybe`.
            errors.append(f"{file}: {_yaml_reason(error)}")
            unreadable.add(file)
            continue
        for number, content in enumerate(parsed, 1):
            source = Source(file, number)
            if content is None:
                continue
            found = _identify(content, source)
            if isinstance(found, str):
                errors.append(found)
                continue
            if found.key in seen:
                errors.append(
                    f"{source}: {found.key} is also defined in {seen[found.key]}; this document is ignored"
                )
                continue
            seen[found.key] = source
            documents.append(found)
    return Loaded(tuple(documents), tuple(errors), frozenset(unreadable))


def _yaml_reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if isinstance(error, OSError | ValueError):
        return str(error)
    return f"cannot be read as YAML: {error!r}"


def _identify(content: object, source: Source) -> Document | str:
    """The document as a resource, or why it is none."""
    if not isinstance(content, dict):
        return f"{source}: not a resource: must be a mapping with apiVersion, kind, metadata and spec"
    kind, api_version = content.get("kind"), content.get("apiVersion")
    if not isinstance(kind, str) or kind not in KINDS or api_version != API_VERSION:
        allowed = ", ".join(KINDS)
        return f"{source}: unknown resource {api_version} {kind}; allowed: {API_VERSION} of kind {allowed}"
    metadata = content.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        return f"{source}: {kind}: metadata.name is required"
    spec = content.get("spec")
    document = Document(source, kind, name, metadata, spec if isinstance(spec, dict) else {})
    _, problems = parse_resource(kind, metadata, content.get("spec"), extra=_extra(content))
    if not problems:
        return document
    return Document(source, kind, name, metadata, document.spec, tuple(problems))


def _extra(content: Mapping[str, Any]) -> list[str]:
    """Unknown top-level fields; `status` is allowed and ignored, as on Kubernetes."""
    return [name for name in content if name not in ("apiVersion", "kind", "metadata", "spec", "status")]


def parse_resource(
    kind: str, metadata: object, spec: object, status: object = None, *, extra: Iterable[str] = ()
) -> tuple[AnyResource | None, list[Problem]]:
    """The resource, or None and all its problems."""
    model = KINDS[kind]
    problems = [Problem(name, "unknown field; allowed: apiVersion, kind, metadata, spec") for name in extra]
    content = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    if status is not None:
        try:
            content["status"] = _parse_status(kind, status)
        except ValidationError as error:
            unreadable = problems_of(error, model)
            return None, [*problems, *(Problem(f"status.{p.path}", p.message) for p in unreadable)]
    try:
        resource: AnyResource = model.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        return None, problems + problems_of(error, model)
    problems += list(resource.problems())
    return (None if problems else resource), problems


# Messages with the names of types in YAML.
_TYPE_MESSAGES = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_attributes_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_type": "must be a string",
}


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Pydantic's errors as problems: a field path, and a message with what is allowed."""
    merged: dict[str, tuple[str, list[str]]] = {}
    for item in error.errors(include_url=False):
        location, kind = item["loc"], item["type"]
        message = item["msg"].removeprefix("Value error, ")
        before = ""
        if kind == "extra_forbidden":
            message = f"unknown field; allowed: {', '.join(_known_fields(model, location[:-1]))}"
        elif kind == "missing" or (location == ("spec",) and item["input"] is None):
            message = "is required"
        elif kind != "value_error":
            before = f"{_shown(item['input'])} is not allowed: "
            message = _TYPE_MESSAGES.get(kind, f"{message[:1].lower()}{message[1:]}")
        _, messages = merged.setdefault(_path(location), (before, []))
        if message not in messages:
            messages.append(message)
    return [
        Problem(path, before + " or ".join(messages).replace(" or must be ", " or "))
        for path, (before, messages) in merged.items()
    ]


def _shown(value: object) -> str:
    """The value in YAML's form."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if isinstance(value, date) else repr(value)


_UNION_BRANCHES = frozenset({"str", "int", "float", "bool", "constrained-str", "constrained-int"})


def _path(location: tuple[int | str, ...]) -> str:
    """The path of a field, such as `spec.listeners[0].port`, without pydantic's names of union branches."""
    path = ""
    for number, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
        elif number == len(location) - 1 and (part in _UNION_BRANCHES or part == "[key]"):
            continue
        elif "." in part:
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def _known_fields(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The aliases of the fields at a location in the model; empty when they are unknown."""
    here: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        field = next(
            (f for name, f in here.model_fields.items() if part in (f.alias, name)),
            None,
        )
        found = _model_in(field.annotation) if field is not None else None
        if found is None:
            return []
        here = found
    return [field.alias or name for name, field in here.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside `Model`, `Model | None`, `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _parse_status(kind: str, status: object) -> Status:
    model = KINDS[kind].model_fields["status"].annotation
    assert isinstance(model, type)
    assert issubclass(model, Status)
    return model.model_validate(status, by_alias=True, by_name=False, extra="ignore")


def invalid_finding(problems: Sequence[str], ready: Finding | None) -> Finding:
    """Ready of a resource whose newest spec has problems. `ready`: that of the last valid spec, if there is
    one, which is in force."""
    message = "; ".join(problems)
    if ready is not None:
        message += "; the last valid spec stays in force"
        if ready.status != "True":
            message += f", and is not Ready: {ready.message or ready.reason}"
    return no("Ready", "InvalidSpec", message)


def status_with(
    kind: str, metadata: Mapping[str, Any], status: Mapping[str, Any], ready: Finding, now_ms: int
) -> dict[str, Any]:
    """The status of a resource that cannot be reconciled: `ready` for its generation, which the operator has
    seen, and the rest unchanged."""
    try:
        parsed = _parse_status(kind, status)
    except ValidationError:
        parsed = _parse_status(kind, {})
    generation = int(metadata.get("generation", 0))
    conditions = merge(parsed.conditions, [ready], generation=generation, now_ms=now_ms, keep_others=True)
    changed = parsed.model_copy(update={"conditions": conditions, "observed_generation": generation})
    return changed.model_dump(by_alias=True, exclude_none=True)


def status_unknown(
    kind: str, status: Mapping[str, Any], reason: str, message: str, now_ms: int
) -> dict[str, Any]:
    """The status of a resource that no operator reconciles: every condition is Unknown."""
    parsed = _parse_status(kind, status)
    findings = [unknown(condition.type, reason, message) for condition in parsed.conditions]
    conditions = merge(parsed.conditions, findings, generation=parsed.observed_generation, now_ms=now_ms)
    changed = parsed.model_copy(update={"conditions": conditions, "operator": None})
    return changed.model_dump(by_alias=True, exclude_none=True)
