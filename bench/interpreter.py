"""Which Python the figures of a benchmark belong to, and whether it is an optimised build.

Called by every benchmark. On an interpreter built without profile-guided optimisation (PGO), as pyenv's are
by default, the broker takes 17 to 51 % more processor time.
"""

from __future__ import annotations

import platform
import shlex
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

PROFILE_FLAGS = ("-fprofile-use", "-fprofile-instr-use")
FLAGS = ("CFLAGS", "PY_CFLAGS", "PY_CFLAGS_NODIST", "LDFLAGS", "PY_LDFLAGS", "PY_LDFLAGS_NODIST")
DISTRIBUTION = "--prefix=/usr"


@dataclass(frozen=True)
class Build:
    """How an interpreter was compiled."""

    pgo: bool
    lto: bool
    debug: bool

    @property
    def is_optimised(self) -> bool:
        return self.pgo and not self.debug

    def __str__(self) -> str:
        names = [("PGO", self.pgo), ("LTO", self.lto), ("debug", self.debug)]
        return " and ".join(name for name, has in names if has) or "neither PGO nor LTO"


def build_of(variables: Mapping[str, Any]) -> Build:
    """Reads the variables of sysconfig.

    Not PGO_PROF_USE_FLAG, which is what the compiler would take: pyenv's builds without PGO have it. The
    packages of Debian and Ubuntu are built with both PGO and LTO, by make rules that leave no trace here but
    where the interpreter is installed; those of other distributions name their options.
    """
    options = shlex.split(str(variables.get("CONFIG_ARGS") or ""))
    flags = " ".join(str(variables.get(name) or "") for name in FLAGS).split()
    packaged = DISTRIBUTION in options
    with_lto = [x for x in options if x.split("=")[0] == "--with-lto" and x != "--with-lto=no"]
    return Build(
        pgo=packaged or "--enable-optimizations" in options or _any_begins(flags, PROFILE_FLAGS),
        lto=packaged or bool(with_lto) or _any_begins(flags, "-flto"),
        debug=bool(variables.get("Py_DEBUG")),
    )


def _any_begins(words: list[str], start: str | tuple[str, ...]) -> bool:
    return any(word.startswith(start) for word in words)


def interpreter() -> str:
    """This interpreter in one line: implementation, version, compiler, build."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{name}, {platform.python_compiler()}, {build_of(sysconfig.get_config_vars())}"


def say_interpreter() -> None:
    """Print the interpreter on standard error, and a warning if it is not an optimised build."""
    click.echo(f"interpreter: {interpreter()}", err=True)
    if not build_of(sysconfig.get_config_vars()).is_optimised:
        click.echo(
            "warning: this is not an optimised build (PGO), which costs 17 to 51 % more processor time than "
            "Debian's python3: make clean setup PYTHON=/usr/bin/python3",
            err=True,
        )
