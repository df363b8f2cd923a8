"""command-line.md: every command with its arguments and options, from click."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Final

import click

from references.markdown import code, plain, table

PROGRAMS: Final = (
    ("ottla", "ottla.cli.main", "Brokers, topics, records, groups and clusters."),
    ("kubectl ottla", "ottla_operator.kubectl.command", "Clusters on Kubernetes."),
    ("ottla-pipeline", "ottla_pipeline.command", "Jobs on Spark."),
    ("ottla-registry", "ottla_pipeline.registry.command", "The schema registry."),
)

_HEAD: Final = """\
# Command line reference

Every command, argument and option, as `--help` prints them. [The guide](../guides/command-line.md) has examples, and
[exit codes](errors.md#exit-codes) are listed with the errors.
"""


COMMON: Final = ("bootstrap", "command_config", "output", "timeout_s")
"""The options of `ottla` commands for a cluster."""

_COMMON_HEAD: Final = """\
## Common options

Of the `ottla` commands for a cluster; *common options* in their tables. Every command has `--help`.
"""


def pages() -> dict[str, str]:
    parts = [_HEAD]
    for program, _, purpose in PROGRAMS:
        parts += [f"- [`{program}`](#{_anchor(program)}): {purpose}"]
    parts += ["", _COMMON_HEAD, _common_table()]
    for program, module, _ in PROGRAMS:
        parts += _command(_root(module), [program], 2)
    return {"command-line.md": "\n".join(parts)}


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def _root(module: str) -> click.Command:
    found = import_module(module).main
    assert isinstance(found, click.Command)
    return found


def _command(command: click.Command, path: list[str], level: int) -> Iterator[str]:
    if command.hidden:
        return
    context = click.Context(command, info_name=" ".join(path))
    yield f"{'#' * level} {' '.join(path)}\n"
    text = _help(command)
    if text:
        yield f"{text}\n"
    if not isinstance(command, click.Group):
        yield f"```\n{' '.join(path)} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    rows = list(_option_rows(command, context))
    if rows:
        yield table(("option", "default", "meaning"), rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _command(child, [*path, name], min(level + 1, 4))


def _help(command: click.Command) -> str:
    """The text of a command; `\\b` keeps the lines of a paragraph, which are examples or lists."""
    found = (command.help or command.short_help or "").partition("\f")[0]
    lines = []
    for paragraph in re.split(r"\n\s*\n", found.strip()):
        if paragraph.lstrip().startswith("\b"):
            lines.append(f"```\n{paragraph.replace(chr(8), '').strip(chr(10))}\n```")
        else:
            lines.append(plain(" ".join(paragraph.split())))
    return "\n\n".join(lines)


def _common_table() -> str:
    command = _root("ottla.cli.main")
    assert isinstance(command, click.Group)
    for name in ("topics", "list"):
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    context = click.Context(command)
    rows = [_row(each, context) for each in _options(command, context) if each.name in COMMON]
    assert len(rows) == len(COMMON)
    return table(("option", "default", "meaning"), rows)


def _option_rows(command: click.Command, context: click.Context) -> Iterator[tuple[str, str, str]]:
    options = _options(command, context)
    common = {each.name for each in options if each.name in COMMON}
    leave_out = common if len(common) == len(COMMON) else set()
    for option in options:
        if option.name not in leave_out:
            yield _row(option, context)
    if leave_out:
        yield "[common options](#common-options)", "", ""


def _options(command: click.Command, context: click.Context) -> list[click.Option]:
    return [
        each
        for each in command.get_params(context)
        if isinstance(each, click.Option) and not each.hidden and "--help" not in each.opts
    ]


def _row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    record = option.get_help_record(context)
    assert record is not None
    default = option.default
    shown = ""
    if option.show_default and default not in (None, False, (), "") and not callable(default):
        shown = code(str(default).lower() if isinstance(default, bool) else default)
    notes = ["*Required.*"] if option.required else []
    if option.multiple:
        notes.append("Can be repeated.")
    if option.envvar:
        names = [option.envvar] if isinstance(option.envvar, str) else option.envvar
        notes.append(f"Environment: {', '.join(code(name) for name in names)}.")
    return code(record[0]), shown, " ".join([plain(option.help or ""), *notes])
