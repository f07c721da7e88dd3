"""`avow serve`: run one peer. Its flags are generated from the settings, one flag for each."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from avow.server.settings import DESCRIPTIONS, ENVIRONMENT_PREFIX, Settings, load

DOCUMENTATION: Final = """Run one peer in the foreground until SIGTERM or Ctrl-C.

A setting is taken from its flag, else from the environment (AVOW_ and its name in capitals), else from the --config
file, else it has its default. When the peer listens, it prints one line of JSON with its addresses.
"""


def serve(config: Path | None = None, **flags: str | None) -> None:
    settings = load(flags, environment=os.environ, config=config)
    from avow.server.serve import run  # only this command needs the peer and its libraries

    raise typer.Exit(run(settings))


def _signature() -> inspect.Signature:
    """All flags are text here: `load` validates a setting in the same way, wherever it comes from."""
    config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings.")]
    parameters = [_parameter("config", config)]
    for field in msgspec.structs.fields(Settings):
        option = typer.Option(
            f"--{field.name.replace('_', '-')}",
            metavar=_metavar(field.type),
            help=_sentence(DESCRIPTIONS[field.name]),
            show_default=_default(field.default),
        )
        parameters.append(_parameter(field.name, Annotated[str | None, option]))
    return inspect.Signature(parameters)


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(kind: Any) -> str:
    """The type of a bounded number is Annotated[int, Meta(...)]."""
    return "NUMBER" if getattr(kind, "__origin__", kind) is int else "TEXT"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _default(value: object) -> str | bool:
    return str(value) if value != "" else False


def settings_table() -> str:
    """The table in docs/reference/settings.md."""
    lines = ["| flag | environment and file | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(Settings):
        name = field.name
        default = f"`{field.default}`" if field.default != "" else "-"
        lines.append(
            f"| `--{name.replace('_', '-')}` | `{ENVIRONMENT_PREFIX}{name.upper()}`, `{name}` | {default} "
            f"| {DESCRIPTIONS[name].replace('|', ' or ')} |"
        )
    return "\n".join(lines) + "\n"


serve.__doc__ = DOCUMENTATION
serve.__signature__ = _signature()  # type: ignore[attr-defined]
