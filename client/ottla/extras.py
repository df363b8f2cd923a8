"""The console scripts, and the message of a command whose optional dependencies (an extra) are not installed.

`pip install ottla` installs the client library alone. The scripts of `pyproject.toml` start here, because the
modules behind them import packages of their extra. `require` does the same for `python -m MODULE`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Final

EXTRAS: Final = {
    "broker": ("click", "kazoo", "prometheus_client", "rich"),
    "operator": ("click", "kazoo", "cryptography", "kopf", "kubernetes", "pydantic", "yaml"),
    "pipeline": ("click", "prometheus_client", "pydantic", "pyspark", "yaml"),
}
"""Packages without which no command of an extra starts, by extra."""
_OWN: Final = frozenset({"ottla", "ottla_operator", "ottla_pipeline"})


def require(extra: str) -> None:
    """End `python -m MODULE` with one line where a package of `extra` is not installed.

    Called by the `__init__` of packages that have such modules. Does nothing when a program imports the
    package: the import fails there by itself.
    """
    if sys.argv[:1] != ["-m"]:  # runpy sets it while it looks for the module
        return
    for package in EXTRAS[extra]:
        if find_spec(package) is None:
            sys.exit(_message("this command", package, extra))


def ottla() -> None:
    """The console script `ottla`."""
    _run("ottla", "ottla.cli.main", "broker")


def kubectl_ottla() -> None:
    """The console script `kubectl-ottla`."""
    _run("kubectl ottla", "ottla_operator.kubectl.command", "operator")


def kubectl_complete_ottla() -> None:
    """The console script `kubectl_complete-ottla`, which kubectl runs to complete `kubectl ottla`."""
    _run("kubectl_complete-ottla", "ottla_operator.kubectl.completion", "operator")


def ottla_pipeline() -> None:
    """The console script `ottla-pipeline`."""
    _run("ottla-pipeline", "ottla_pipeline.command", "pipeline")


def ottla_registry() -> None:
    """The console script `ottla-registry`."""
    _run("ottla-registry", "ottla_pipeline.registry.command", "pipeline")


def _run(command: str, module: str, extra: str) -> None:
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OWN:
            raise
        sys.exit(_message(command, package, extra))


def _message(command: str, package: str, extra: str) -> str:
    return f"{command} needs the package {package}: pip install 'ottla[{extra}]'"
