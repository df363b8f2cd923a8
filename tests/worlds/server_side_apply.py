"""Server-side apply and `metadata.managedFields` as an API server keeps them, on plain dicts.

For `InMemoryApi`. The rules were compared with a Kubernetes 1.35: an applier owns what it applies, and what
it no longer applies is removed unless another manager owns it, too; an update takes the fields that it
changes; lists with keys are merged item by item, atomic ones are replaced. Fields that defaults or webhooks
set have no owner.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

Item = dict[str, Any]
Path = tuple[str, ...]
Fields = dict[Path, Any]
"""The leaves of an object, and its list items (by "."), with their values."""

# Lists that are merged, by the field's name and the keys of their items. An item has all keys.
_KEYED = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
    "imagePullSecrets": ("name",),
}
_ATOMIC_MAPS = {"selector", "labelSelector", "podSelector", "namespaceSelector", "nodeSelector", "fieldRef"}
_IGNORED = {
    ("f:metadata", f"f:{name}")
    for name in ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
} | {("f:metadata", "f:managedFields"), ("f:metadata", "f:deletionTimestamp")}


def _keys(name: str, items: list[Any]) -> tuple[str, ...]:
    if name == "ports" and all(isinstance(item, dict) for item in items):
        in_container = any("containerPort" in item for item in items)
        in_service = any("targetPort" in item for item in items)
        return ("containerPort", "protocol") if in_container else ("port", "protocol") if in_service else ()
    return _KEYED.get(name, ())


def _item_key(item: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    values = {key: item.get(key, "TCP" if key == "protocol" else None) for key in keys}
    return "k:" + json.dumps(values, sort_keys=True, separators=(",", ":"))


def leaves(value: Any, path: Path = (), name: str = "") -> Iterator[tuple[Path, Any]]:
    """The leaves of an object with their paths in the form of FieldsV1."""
    if path in _IGNORED or path[:1] in (("f:apiVersion",), ("f:kind",)):
        return
    if isinstance(value, dict) and value and name not in _ATOMIC_MAPS:
        for field, inner in value.items():
            yield from leaves(inner, (*path, f"f:{field}"), field)
    elif isinstance(value, list) and _keys(name, value):
        keys = _keys(name, value)
        for item in value:
            at = (*path, _item_key(item, keys))
            yield (*at, "."), None
            yield from leaves(item, at)
    else:
        yield path, value


# ---- FieldsV1


def tree(paths: set[Path]) -> Item:
    root: Item = {}
    for path in sorted(paths):
        node = root
        for element in path:
            node = node.setdefault(element, {})
    return root


def paths_of(fields: Mapping[str, Any], path: Path = ()) -> set[Path]:
    if not fields:
        return {path} if path else set()
    found = [paths_of(inner, (*path, element)) for element, inner in fields.items()]
    return set().union(*found)


def _owned(item: Item) -> dict[tuple[str, str, str], set[Path]]:
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): paths_of(entry["fieldsV1"])
        for entry in item["metadata"].get("managedFields") or ()
    }


def _with_owners(item: Item, owned: Mapping[tuple[str, str, str], set[Path]], at: str) -> Item:
    entries = [
        {
            "manager": manager,
            "operation": operation,
            "apiVersion": item.get("apiVersion", "v1"),
            "time": at,
            "fieldsType": "FieldsV1",
            "fieldsV1": tree(paths),
            **({"subresource": subresource} if subresource else {}),
        }
        for (manager, operation, subresource), paths in owned.items()
        if paths
    ]
    metadata = {**item["metadata"], "managedFields": entries}
    return {**item, "metadata": metadata}


# ---- the two operations


def updated(before: Item | None, after: Item, manager: str, at: str, subresource: str = "") -> Item:
    """`after` with the owners of its fields after a create (`before` None), a patch or a replacement."""
    old, new = dict(leaves(before or {})), dict(leaves(after))
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    # The owners are those of the request, which may change them.
    owned = {who: paths & set(new) - changed for who, paths in _owned(after).items()}
    who = (manager, "Update", subresource)
    owned[who] = owned.get(who, set()) | changed
    return _with_owners(after, owned, at)


def applied(before: Item | None, manifest: Item, manager: str, at: str) -> Item:
    """The object after a forced server-side apply of the manifest."""
    assert not manifest["metadata"].get("managedFields"), "metadata.managedFields must be nil"
    wanted = dict(leaves(manifest))
    who = (manager, "Apply", "")
    if before is None:
        return _with_owners(copy.deepcopy(manifest), {who: set(wanted)}, at)
    owned, old = _owned(before), dict(leaves(before))
    mine = owned.pop(who, set())
    if not before["metadata"].get("managedFields"):
        owned["before-first-apply", "Update", ""] = set(old)
    by_others = set().union(*owned.values()) if owned else set()
    gone = mine - set(wanted) - by_others
    kept = _without(copy.deepcopy(before), gone)
    result = _merged(kept, manifest)
    conflicts = {path for path, value in wanted.items() if path in old and old[path] != value}
    owned = {other: paths - conflicts for other, paths in owned.items()}
    owned[who] = set(wanted)
    return _with_owners(result, owned, at)


def _without(item: Any, gone: set[Path], path: Path = (), name: str = "") -> Any:
    """The object without these leaves and list items, and without maps that have become empty."""
    if isinstance(item, dict) and name not in _ATOMIC_MAPS:
        left = {}
        for field, inner in item.items():
            at = (*path, f"f:{field}")
            if at in gone:
                continue
            pruned = _without(inner, gone, at, field)
            if pruned in ({}, []) and inner not in ({}, []):
                continue
            left[field] = pruned
        return left
    if isinstance(item, list) and _keys(name, item):
        keys = _keys(name, item)
        by_path = [((*path, _item_key(each, keys)), each) for each in item]
        return [_without(each, gone, at) for at, each in by_path if (*at, ".") not in gone]
    return item


def _merged(base: Any, wanted: Any, name: str = "") -> Any:
    if isinstance(base, dict) and isinstance(wanted, dict) and name not in _ATOMIC_MAPS:
        merged = dict(base)
        for field, value in wanted.items():
            merged[field] = _merged(base.get(field), value, field)
        return merged
    if isinstance(base, list) and isinstance(wanted, list) and _keys(name, [*base, *wanted]):
        keys = _keys(name, [*base, *wanted])
        theirs = {_item_key(item, keys): item for item in base}
        ours = [_item_key(item, keys) for item in wanted]
        extra = [item for key, item in theirs.items() if key not in ours]
        return [*extra, *(_merged(theirs.get(key), item) for key, item in zip(ours, wanted, strict=True))]
    return copy.deepcopy(wanted)
