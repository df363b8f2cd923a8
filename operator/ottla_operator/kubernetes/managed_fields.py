"""Finds the fields of a child object that another manager has set, from `metadata.managedFields`.

Pure; used by `child_objects`. The API server records for every field who set it last: a manager with an
operation (Apply or Update), the fields as a tree of FieldsV1. A field of a child that another manager owns
is foreign, with these exceptions: status; metadata, in which tools keep their own labels and annotations;
and the fields in `_OF_OTHERS`. Defaults, allocated addresses and the changes of admission webhooks have no
owner and are not foreign.

A foreign field is removed in two writes: one gives its ownership to the operator's own entry (`taken_over`),
after which a server-side apply removes what the manifest does not have, also the items of lists with keys.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla_operator.kubernetes.naming import MANAGER, RESTARTED_AT_ANNOTATION
from ottla_operator.kubernetes.observing import Object

Path = tuple[str, ...]
"""Elements of FieldsV1: `f:NAME` is a field, `k:{…}` the item of a list with these keys, `v:…` a value of a
set."""

MISSING: Final = object()

_ITEM: Final = "."
_ANY: Final = "*"
_NOT_CHECKED: Final = ("f:metadata", "f:status", "f:apiVersion", "f:kind")

# What other components legitimately set: the cluster's allocations, load-balancer controllers, controllers
# that give every account its pull secret, and `kubectl rollout restart`.
_OF_OTHERS: Final[Mapping[str, Collection[Path]]] = {
    "Service": (
        *(
            ("f:spec", f"f:{name}")
            for name in (
                *("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"),
                *("healthCheckNodePort", "loadBalancerIP", "loadBalancerClass"),
            )
        ),
        ("f:spec", "f:ports", _ANY, "f:nodePort"),
    ),
    "ServiceAccount": (("f:secrets",), ("f:imagePullSecrets",)),
    "StatefulSet": (("f:spec", "f:template", "f:metadata", "f:annotations", f"f:{RESTARTED_AT_ANNOTATION}"),),
}


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field, or an item of a list, that another manager set."""

    path: Path
    manager: str
    operation: str

    @property
    def name(self) -> str:
        """The field's path for people: spec.ports[port=9092,protocol=TCP].name."""
        return shown(self.path)

    def __str__(self) -> str:
        return f"{self.name} by {self.manager} ({self.operation})"


def foreign_fields(live: Object) -> list[ForeignField]:
    """The foreign fields of a child object; an item of a list that another manager added counts as one."""
    found = []
    for entry in _entries(live):
        if _is_own(entry) or entry.get("subresource") == "status":
            continue
        manager, operation = str(entry.get("manager")), str(entry.get("operation"))
        taken = _takeable(live["kind"], entry.get("fieldsV1") or {})
        found += [ForeignField(path, manager, operation) for path in _roots(taken)]
    return found


def changed_metadata(live: Object, manifest: Object) -> list[ForeignField]:
    """The labels and annotations of the manifest to which another manager gave another value."""
    found = []
    for entry in _entries(live):
        if _is_own(entry):
            continue
        metadata = (entry.get("fieldsV1") or {}).get("f:metadata") or {}
        for kind in ("f:labels", "f:annotations"):
            for path in _roots({"f:metadata": {kind: metadata.get(kind) or {}}}):
                wanted = value_at(manifest, path)
                if len(path) == 3 and wanted is not MISSING and wanted != value_at(live, path):
                    found.append(ForeignField(path, str(entry["manager"]), str(entry["operation"])))
    return found


def taken_over(live: Object, fields: Collection[ForeignField]) -> list[dict[str, Any]]:
    """The managedFields of the object after the operator has taken the ownership of these fields."""
    entries = copy.deepcopy(_entries(live))
    own: dict[str, Any] = next(
        (entry for entry in entries if _is_own(entry)),
        {
            "manager": MANAGER,
            "operation": "Apply",
            "apiVersion": live["apiVersion"],
            "fieldsType": "FieldsV1",
            "fieldsV1": {},
        },
    )
    left = [own]
    for entry in entries:
        if entry is own:
            continue
        paths = [
            field.path
            for field in fields
            if (field.manager, field.operation) == (entry.get("manager"), entry.get("operation"))
        ]
        if entry.get("subresource") != "status":
            for path in paths:
                _move(entry["fieldsV1"], own["fieldsV1"], path)
        if entry.get("fieldsV1"):
            left.append(entry)
    return left


def applied_part(live: Object) -> dict[str, Any]:
    """The fields of the object that the operator has applied and that no other manager has changed since, as
    a manifest."""
    metadata = {name: live["metadata"][name] for name in ("name", "namespace")}
    own: dict[str, Any] = next((entry["fieldsV1"] for entry in _entries(live) if _is_own(entry)), {})
    part = _part(own, live)
    return {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        **part,
        "metadata": {**part.get("metadata", {}), **metadata},
    }


def _part(fields: Mapping[str, Any], value: Any) -> Any:
    inner = {name: below for name, below in fields.items() if name != _ITEM}
    if not inner:
        return copy.deepcopy(value)
    if isinstance(value, list):
        return [_part(below, item) for item in value for name, below in inner.items() if _matches(name, item)]
    return {name[2:]: _part(below, value[name[2:]]) for name, below in inner.items() if name[2:] in value}


def without(item: Any, paths: Collection[Path]) -> Any:
    """The object without these fields and list items."""
    if not paths:
        return item
    if isinstance(item, Mapping):
        return {
            name: without(value, _below(paths, f"f:{name}"))
            for name, value in item.items()
            if (f"f:{name}",) not in paths
        }
    if isinstance(item, list):
        kept = []
        for value in item:
            matching = {path[0] for path in paths if _matches(path[0], value)}
            if any((element,) in paths for element in matching):
                continue
            kept.append(without(value, [path[1:] for path in paths if path[0] in matching]))
        return kept
    return item


def with_values_of(manifest: Object, live: Object, paths: Collection[Path]) -> dict[str, Any]:
    """The manifest with the live values of those of these fields that it has."""
    result = copy.deepcopy(dict(manifest))
    for path in paths:
        parent, value = value_at(result, path[:-1]), value_at(live, path)
        if isinstance(parent, dict) and path[-1][2:] in parent and value is not MISSING:
            parent[path[-1][2:]] = copy.deepcopy(value)
    return result


def value_at(item: Any, path: Path) -> Any:
    """The value of a field or list item; MISSING when there is none."""
    for element in path:
        if element.startswith("f:"):
            if not isinstance(item, Mapping) or element[2:] not in item:
                return MISSING
            item = item[element[2:]]
        else:
            items = item if isinstance(item, list) else ()
            item = next((each for each in items if _matches(element, each)), MISSING)
            if item is MISSING:
                return MISSING
    return item


def shown(path: Path) -> str:
    """The path for people."""
    text = ""
    for element in path:
        if element.startswith("f:"):
            name = element[2:]
            text += f"[{name}]" if "." in name or "/" in name else f".{name}"
        elif element.startswith("k:"):
            keys = ",".join(f"{key}={value}" for key, value in json.loads(element[2:]).items())
            text += f"[{keys}]"
        else:
            text += f"[{element.partition(':')[2]}]"
    return text.lstrip(".")


def _entries(live: Object) -> list[dict[str, Any]]:
    return [dict(entry) for entry in live["metadata"].get("managedFields") or () if entry]


def _is_own(entry: Object) -> bool:
    return entry.get("manager") == MANAGER and entry.get("operation") == "Apply"


def _takeable(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The tree without what is never foreign."""
    taken = {name: copy.deepcopy(inner) for name, inner in fields.items() if name not in _NOT_CHECKED}
    for path in _OF_OTHERS.get(kind, ()):
        _prune(taken, path)
    return taken


def _prune(tree: dict[str, Any], path: Path) -> None:
    """Remove the path, and maps that become empty. An added item stays whole."""
    head, rest = path[0], path[1:]
    for name in [name for name in tree if head in (_ANY, name)]:
        if not rest:
            del tree[name]
            continue
        if name.startswith("k:") and _ITEM in tree[name]:
            continue
        had = bool(tree[name])
        _prune(tree[name], rest)
        if had and set(tree[name]) <= {_ITEM}:
            del tree[name]


def _roots(tree: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    for name, inner in tree.items():
        if name == _ITEM:
            continue
        at = (*path, name)
        is_item = not name.startswith("f:")
        if not inner or (is_item and _ITEM in inner) or set(inner) == {_ITEM}:
            yield at
        else:
            yield from _roots(inner, at)


def _move(source: dict[str, Any], target: dict[str, Any], path: Path) -> None:
    """Move the subtree at the path, and drop maps of the source that have become empty."""
    head, rest = path[0], path[1:]
    if head not in source:
        return
    if not rest:
        target[head] = _united(target.get(head, {}), source.pop(head))
        return
    inner = target.setdefault(head, {})
    _move(source[head], inner, rest)
    if set(source[head]) <= {_ITEM}:
        inner.update(source.pop(head))


def _united(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    united = dict(one)
    for name, inner in other.items():
        united[name] = _united(united.get(name, {}), inner)
    return united


def _below(paths: Collection[Path], element: str) -> list[Path]:
    return [path[1:] for path in paths if path[0] == element and len(path) > 1]


def _matches(element: str, value: Any) -> bool:
    """Whether the item of a list has these keys, or is this value."""
    wanted = json.loads(element[2:]) if element[:2] in ("k:", "v:") else MISSING
    if element.startswith("v:"):
        return bool(value == wanted)
    if not isinstance(wanted, Mapping) or not isinstance(value, Mapping):
        return False
    # The API server's default.
    defaults = {"protocol": "TCP"}
    return all(value.get(key, defaults.get(key)) == expected for key, expected in wanted.items())
