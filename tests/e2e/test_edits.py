"""Random edits of the operator's objects and of the spec, one after the other and under load: each is undone,
or carried out, or named by a condition.

OTTLA_E2E_SEED chooses the edits, OTTLA_E2E_EDITS their number, OTTLA_E2E_FIRST_EDIT the first of them: each
follows from the seed and its own number.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.e2e.clients import Traffic
from tests.e2e.clusters import CHILD_KINDS, Cluster
from tests.e2e.kube import CommandFailed, Kube, Object, wait_for

SEED = int(os.environ.get("OTTLA_E2E_SEED", "1"))
EDITS = int(os.environ.get("OTTLA_E2E_EDITS", "50"))
FIRST = int(os.environ.get("OTTLA_E2E_FIRST_EDIT", "0"))

Path = tuple[str | int, ...]

# Random values of these would not be an edit, but another cluster: clients could not reach it.
_LEFT_ALONE = ("spec.listeners", "spec.bootstrap")


class Leaf(NamedTuple):
    path: Path
    value: Any


def leaves(value: Any, path: Path = ()) -> Iterator[Leaf]:
    """The scalars of an object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from leaves(inner, (*path, at))
    else:
        yield Leaf(path, value)


def fields(schema: Object, path: Path = ()) -> Iterator[tuple[Path, Object]]:
    """The scalar fields of a CRD's schema outside of lists, with their own schemas."""
    for name, inner in (schema.get("properties") or {}).items():
        if inner.get("type") == "object":
            yield from fields(inner, (*path, name))
        elif inner.get("type") != "array":
            yield (*path, name), inner


def changed(value: Any, source: random.Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + source.choice((-1, 1))
    return source.choice((f"{value}x", "edited"))


def value_of(schema: Object, source: random.Random) -> Any:
    """A value for a field, which need not be a sensible one."""
    if "enum" in schema:
        return source.choice(schema["enum"])
    match schema.get("type"):
        case "boolean":
            return source.choice((True, False))
        case "integer":
            least = schema.get("minimum", 0)
            return source.randint(least, min(schema.get("maximum", least + 3), least + 3))
        case "number":
            return source.choice((schema.get("minimum", 0), schema.get("maximum", 1), 0.5, 1.5))
    return source.choice(("edited", "300Mi", "7", "2m", "no-such:1"))


def child_edit(content: Object, source: random.Random) -> list[Object]:
    """A JSON patch of an object: a value changed or removed, or an item or a key added."""
    at = source.choice([leaf for leaf in leaves(content) if leaf.path[0] not in _NOT_CONTENT])
    pointer = _pointer(at.path)
    match source.choice(("replace", "replace", "remove", "add", "add")):
        case "replace":
            return [{"op": "replace", "path": pointer, "value": changed(at.value, source)}]
        case "remove":
            cut = source.randint(min(2, len(at.path)), len(at.path))
            return [{"op": "remove", "path": _pointer(at.path[:cut])}]
    lists = [n for n, step in enumerate(at.path) if isinstance(step, int)]
    if lists:
        item = copy.deepcopy(_inner(content, at.path[: lists[-1] + 1]))
        if isinstance(item, dict):
            item = {
                key: changed(value, source) if _is_scalar(value) else value for key, value in item.items()
            }
        else:
            item = changed(item, source)
        return [{"op": "add", "path": f"{_pointer(at.path[: lists[-1]])}/-", "value": item}]
    return [{"op": "add", "path": f"{_pointer(at.path[:-1])}/edited", "value": "edited"}]


_NOT_CONTENT = ("apiVersion", "kind", "metadata", "status")


def _content(found: Object) -> Object:
    """What the operator restores. The address of a Service is the API server's: a new one gets another."""
    content = {part: value for part, value in found.items() if part not in _NOT_CONTENT}
    spec = content.get("spec", {})
    if spec.get("clusterIP", "None") != "None":
        own = {field: value for field, value in spec.items() if field not in ("clusterIP", "clusterIPs")}
        return {**content, "spec": own}
    return content


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _inner(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _pointer(path: Path) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def is_named(text: str, path: Path, value: Any) -> bool:
    """Whether the text names the edit: by the field's path, or its name if that is no common word; by a value
    that does not occur by chance; by the name and the value otherwise."""

    def has(word: str) -> bool:
        return re.search(rf"(?<![-.A-Za-z0-9]){re.escape(word)}(?![-A-Za-z0-9])", text) is not None

    field = str(path[-1])
    paths = [".".join(map(str, path[at:])) for at in range(len(path) - 1)]
    if any(re.search(rf"{re.escape(each)}(?![-A-Za-z0-9])", text) for each in paths):
        return True
    if isinstance(value, str) and len(value) >= _UNCOMMON and has(value):
        return True
    # `no PriorityClass with name 2m was found`: the API server names the kind that the field refers to.
    kind = field.removesuffix("Name")
    if kind != field and re.search(rf"\b{kind}\b", text, re.IGNORECASE) and has(str(value)):
        return True
    around = ".".join(map(str, path[:-1]))
    return has(field) and (not field.islower() or has(str(value)) or has(around))


_UNCOMMON = 5
"""From this length on, a value does not occur in a message by chance."""


class Edits:
    """Makes edits of one cluster, and waits for what becomes of each."""

    def __init__(self, kube: Kube, cluster: Cluster, seed: int) -> None:
        self._kube, self._cluster = kube, cluster
        self._seed, self._random = seed, random.Random()
        crd = json.loads(kube.kubectl("get", "crd", "brokerclusters.ottla.dev", "-o", "json"))
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        self._fields = [
            (path, inner)
            for path, inner in fields({"properties": {"spec": schema["properties"]["spec"]}})
            if not ".".join(map(str, path)).startswith(_LEFT_ALONE)
        ]
        self._children = [(kind, name) for kind, name, _ in cluster.children() if kind in CHILD_KINDS]
        self._before = {child: self._content(*child) for child in self._children}
        self._spec = cluster.spec

    def one(self, number: int) -> str:
        """Makes an edit; returns it with what became of it."""
        self._random = random.Random(f"{self._seed}/{number}")
        while True:
            # More of the children: an edit of the spec may restart every broker, twice.
            edit = self._edit_spec() if self._random.random() < 0.3 else self._edit_child()
            if edit:
                return edit

    def left(self) -> list[tuple[str, str]]:
        """The objects that are not as they were."""
        return [child for child, content in self._before.items() if self._content(*child) != content]

    # ---- objects of the operator

    def _content(self, kind: str, name: str) -> Object:
        return _content(self._kube.get(kind, name, self._cluster.namespace) or {})

    def _edit_child(self) -> str:
        kind, name = self._random.choice(self._children)
        if self._random.random() < 0.1:
            more = ["--cascade=orphan"] if kind == "statefulset" else []
            self._kube.delete(kind, name, self._cluster.namespace, *more)
            return self._wait_restored(kind, name, "deleted")
        patch = child_edit(self._before[kind, name], self._random)
        try:
            edited = self._patch(kind, name, patch)
        except CommandFailed:
            return ""  # refused by the API server
        if _content(edited) == self._before[kind, name]:
            return ""  # a field that does not exist, or the default of one that was removed
        return self._wait_restored(kind, name, json.dumps(patch))

    def _patch(self, kind: str, name: str, patch: list[Object]) -> Object:
        arguments = ("-n", self._cluster.namespace, "--type=json", "-p", json.dumps(patch), "-o", "json")
        edited: Object = json.loads(self._kube.kubectl("patch", kind, name, *arguments))
        return edited

    def _wait_restored(self, kind: str, name: str, what: str) -> str:
        began = time.monotonic()
        before = self._before[kind, name]
        try:
            wait_for(f"{kind} {name} is restored", lambda: self._content(kind, name) == before, 60)
            self._cluster.wait_ready(120)
        except AssertionError as error:
            raise AssertionError(f"{kind} {name}: {what}: {error}: {self._content(kind, name)}") from None
        return f"{kind} {name}: {what}: restored after {time.monotonic() - began:.0f} s"

    # ---- the spec

    def _edit_spec(self) -> str:
        path, schema = self._random.choice(self._fields)
        value = value_of(schema, self._random)
        if path == ("spec", "replicas"):
            value = 4
        spec = copy.deepcopy(self._spec)
        inner: Any = spec
        for step in path[1:-1]:
            inner = inner.setdefault(step, {})
        if inner.get(path[-1]) == value:
            return ""
        inner[path[-1]] = value
        what = f"{'.'.join(map(str, path))}: {value!r}"
        name = self._cluster.name
        refused = ""
        try:
            self._patch("brokercluster", name, [{"op": "replace", "path": "/spec", "value": spec}])
        except CommandFailed as error:
            refused = error.output
        if refused:
            # What adds an object, too, may be refused for the object, or for another field that it needs.
            objects = [path[:end] for end in range(2, len(path))]
            named = any(re.search(rf"\b{each[-1]}\b", refused) for each in objects)
            assert named or is_named(refused, path, value), f"{what}: refused: {refused}"
            return f"{what}: refused: {refused.splitlines()[-1][-200:]}"
        began = time.monotonic()
        try:
            outcome = wait_for("it is carried out or named", lambda: self._outcome(path, value, began), 180)
            self._patch("brokercluster", name, [{"op": "replace", "path": "/spec", "value": self._spec}])
            wait_for("it is taken back", lambda: not self._bad(), 180)
        except AssertionError as error:
            status = json.dumps(self._cluster.status.get("conditions"))
            raise AssertionError(f"{what}: {error}: {status}") from None
        return f"{what}: {outcome}, taken back after {time.monotonic() - began:.0f} s"

    def _outcome(self, path: Path, value: Any, began: float) -> str:
        """What became of an edit of the spec; empty while it is open."""
        bad = self._bad()
        if not bad:
            return "carried out"
        if time.monotonic() < began + _WORK_S:
            return ""
        for each in bad:
            if is_named(f"{each.get('reason')} {each.get('message')}", path, value):
                return f"named by {each['type']}: {each['reason']}: {each['message'][:150]}"
        return ""

    def _bad(self) -> list[Object]:
        """The conditions that are not as those of a cluster at rest, or that are about another spec."""
        found = self._kube.get("brokercluster", self._cluster.name, self._cluster.namespace) or {}
        return [
            each
            for each in (found.get("status") or {}).get("conditions") or ()
            if each["type"] != "Balanced"  # by load: not at rest before it is measured
            and (
                (each["status"] == "True") == (each["type"] in _BAD_IF_TRUE)
                or each["observedGeneration"] != found["metadata"]["generation"]
            )
        ]


_HEAP: Path = ("spec", "zookeeper", "managed", "heap")
_SCHEDULER: Path = ("spec", "template", "pod", "spec", "schedulerName")
_SIZE: Path = ("spec", "storage", "size")


@pytest.mark.parametrize(
    ("text", "path", "value", "named"),
    [
        ("revision a7f3 is not on broker 7", _SCHEDULER, "7", False),
        ("no scheduler has handled the pod, whose schedulerName is '7'", _SCHEDULER, "7", True),
        ('no such thing: "edited"', _SCHEDULER, "edited", True),
        ("spec was edited-by a user", _SCHEDULER, "edited", False),
        ("the heap is too small", _HEAP, "2m", False),
        ("the heap 2m is too small", _HEAP, "2m", True),
        ("zookeeper.managed.heap is too small", _HEAP, "2m", True),
        ("the size is odd", _SIZE, "7", False),
        ("no PriorityClass with name 2m was found", ("spec", "priorityClassName"), "2m", True),
        ("no PriorityClass was found", ("spec", "priorityClassName"), "2m", False),
        ("spec.storage: size and class exclude each other", _SIZE, "7", True),
        ("demo-0 has 1Gi, more than spec.storage.size 7", _SIZE, "7", True),
    ],
)
def test_a_message_names_an_edit_by_its_field_or_a_value_that_does_not_occur_by_chance(
    text: str, path: Path, value: str, *, named: bool
) -> None:
    assert is_named(text, path, value) == named


_WORK_S = 45
"""Before this, what is not carried out may be about to be."""
_BAD_IF_TRUE = ("Rolling", "Scaling", "ReconciliationPaused", "Contested")


def test_random_edits_are_undone_carried_out_or_named_under_load(kube: Kube, cluster: Cluster) -> None:
    edits = Edits(kube, cluster, SEED)
    with Traffic(cluster, "events", per_second=50) as traffic:
        for number in range(FIRST, FIRST + EDITS):
            print(f"{number}: {edits.one(number)}", flush=True)
        traffic.wait_for_more(100)
        traffic.assert_lost_nothing(isr_kept=False)
    wait_for("every object is as it was", lambda: not edits.left(), 60)
