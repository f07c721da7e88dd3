"""The page of all `avow` commands with their arguments and flags, generated from the parser."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.main import get_command

from avow.cli.main import ABOUT, app_of
from tools.reference.markdown import code, table

_HEAD: Final = """# Commands

{about}
[The command line](../cli.md) explains the commands. `avow COMMAND --help` prints the same as this page.
"""


def commands_page() -> str:
    parts = [_HEAD.format(about=ABOUT.partition("\n\n")[2])]
    parts += [_described(name, command) for name, command in _commands(get_command(app_of()), "avow")]
    return "\n".join(parts)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    found = getattr(command, "commands", None)
    if found is None:
        yield name, command
        return
    for word, one in found.items():
        yield from _commands(one, f"{name} {word}")


def _described(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = " ".join((name, *command.collect_usage_pieces(context)))
    text = inspect.cleandoc(command.help or "")
    rows = [_row(one) for one in command.params if one.name != "help"]
    shown = table(("", "", "default", "environment"), rows) if rows else ""
    return f"## {name}\n\n```\n{usage}\n```\n\n{text}\n\n{shown}"


def _row(parameter: Any) -> tuple[str, str, str, str]:
    if parameter.param_type_name == "argument":
        return code(parameter.metavar or parameter.name.upper()), parameter.help or "", "", ""
    flags = ", ".join((*parameter.opts, *parameter.secondary_opts))
    takes = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return code(flags + takes), parameter.help or "", _default(parameter), code(parameter.envvar or "")


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.required:
        return "required"
    if parameter.is_flag or callable(parameter.default) or parameter.default in (None, "", (), []):
        return ""
    return code(getattr(parameter.default, "value", parameter.default))
