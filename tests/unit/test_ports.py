"""The broker's packages reach files through `ottla.ports` only.

ruff (TID251) bans functions of modules; it sees neither the builtin `open` nor the methods of Path.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import ottla.ports

PACKAGES = ("controller", "coordinators", "metadata", "quotas", "replication", "server", "storage")
BANNED_METHODS = {
    "glob",
    "is_dir",
    "is_file",
    "iterdir",
    "mkdir",
    "read_bytes",
    "read_text",
    "rglob",
    "rmdir",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}
EXEMPT = {
    "metadata/config_def.py",  # configuration files, which programs read before they start a broker
    "metadata/zookeeper_access.py",
    "server/metrics/broker.py",  # /proc
}


def uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, expression) of the calls that read or change files without a Files."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        receiver, _, name = called.rpartition(".")
        if called == "open" or (name in BANNED_METHODS and receiver and not receiver.endswith("files")):
            yield node.lineno, called


def test_files_are_reached_through_the_port() -> None:
    root = Path(ottla.ports.__file__).parent.parent
    found = [
        f"{path.relative_to(root)}:{line}: {called}"
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if str(path.relative_to(root)) not in EXEMPT
        for line, called in uses(ast.parse(path.read_text()))
    ]
    assert found == []


def test_a_call_beside_the_port_is_found() -> None:
    tree = ast.parse("open(path)\npath.read_text()\nself._files.unlink(path)\nfiles.open(path)")
    assert list(uses(tree)) == [(1, "open"), (2, "path.read_text")]
