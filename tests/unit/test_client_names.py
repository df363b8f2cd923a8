"""docs/reference/client-names.md names existing classes and functions of all clients; every public name has a
docstring."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ottla.client
from ottla.client import blocking
from ottla.protocol import frames, messages
from references import protocol_messages

PAGE = Path(__file__).parents[2] / "docs/reference/client-names.md"


def found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def rows() -> Iterator[tuple[str, list[str]]]:
    """(class, its names) of each cell."""
    classes: list[str] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 4:
            classes = []
        elif not classes:
            classes = cells
        else:
            yield from zip(classes, (re.findall(r"`(\w+)`", cell) for cell in cells), strict=True)


def test_every_name_of_the_tables_exists() -> None:
    named = [(path, name) for path, names in rows() for name in names]
    assert len(named) > 100, "the tables were not found"
    assert [(path, name) for path, name in named if not hasattr(found(path), name)] == []


def test_every_call_of_ottlas_client_is_listed() -> None:
    ours = {name for path, names in rows() if path.startswith("ottla.") for name in names}
    not_for_users = {"abort_if_possible", "append_or_wait", "prepare", "add", "await_capacity", "config"}
    for offered in (ottla.client.Producer, ottla.client.Consumer):
        assert set(public(offered)) - ours - not_for_users == set()


def public(offered: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(offered)
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property))
    }


def test_every_message_and_field_is_on_the_protocols_page() -> None:
    """Independent of the page's generator: by the classes that requests are decoded to."""
    parts = re.split(r"^### ", protocol_messages.pages()["protocol-messages.md"], flags=re.MULTILINE)
    described = {part.partition("\n")[0].strip("`"): part for part in parts[1:]}
    assert set(described) == {kind.__name__ for kind in messages.ALL}
    for kind in [*frames.REQUESTS.values(), *frames.RESPONSES.values()]:
        assert kind.__dict__.get("__doc__"), kind
        part = described[kind.__name__]
        assert f"Versions {kind.min_version}" in part
        named = {row.split("`")[1].rpartition(".")[2] for row in part.splitlines() if row.startswith("| `")}
        structs = [kind, *(each for each in vars(kind).values() if isinstance(each, type))]
        assert named == {name for struct in structs for name in getattr(struct, "_specs", {})}, kind


def test_the_client_depends_only_on_the_codecs() -> None:
    program = (
        "import sys;"
        "from ottla.client import Producer, Consumer, AdminClient, blocking, errors, serialization;"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    # -S: site-packages' .pth files import what they like
    path = os.pathsep.join(filter(None, sys.path))
    run = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert set(run.stdout.split()) <= {"__main__", "ottla", "cramjam", "crc32c"}


OFFERED = [
    *(getattr(ottla.client, name) for name in ottla.client.__all__),
    *(getattr(blocking, name) for name in blocking.__all__),
]


@pytest.mark.parametrize("offered", OFFERED, ids=lambda offered: f"{offered.__module__}.{offered.__name__}")
def test_everything_public_has_a_docstring(offered: type) -> None:
    assert inspect.getdoc(offered)
    silent = [name for name, member in public(offered).items() if not inspect.getdoc(member)]
    assert silent == []
