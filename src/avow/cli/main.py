"""The `avow` command: it lists and dispatches subcommands, and turns an error into one line and an exit code.

Only the module of the subcommand on the command line is imported, so that `avow enqueue` in a loop starts quickly; the
list of commands imports all of them. Other packages add commands through the entry-point group `avow.commands` (name =
"module:function"). `avow_lab` adds simulate, prove and demo this way, and nothing in `avow` imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from typing import Final, cast

import typer

from avow.cli.output import REFUSED, report
from avow.errors import AvowError, InvalidRequest, NotInstalled

ABOUT: Final = """Avow carries a message from a database commit to a Spark table exactly once.

Exit codes: 0 done, 1 refused, 2 wrong usage, 3 outcome unknown, 4 no peer could be reached.
"""
COMMANDS: Final = ("up", "serve", "status", "enqueue", "read", "tail", "doctor")
"""Each is a module with a function of the same name."""
NOUNS: Final = ("queue", "subscriber", "pledge", "pipeline", "peer", "upgrade")
"""Each is a module with an `app` that has several commands."""
PLUGINS: Final = "avow.commands"
"""The entry-point group of commands that other packages add."""
ACCEPT_ALL: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


def app_of(names: Iterable[str] | None = None) -> typer.Typer:
    """The app with the named commands, or with all of them if `names` is None."""
    app = typer.Typer(
        help=ABOUT,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_avow)
    for name in (*COMMANDS, *NOUNS, *_plugged()) if names is None else names:
        try:
            _add(app, name)
        except (NotInstalled, InvalidRequest) as problem:  # the other commands still work
            extra = problem.extra if isinstance(problem, NotInstalled) else ""
            about = f"Not installed: pip install 'avow[{extra}]'." if extra else f"Not available: {problem}."
            app.command(name, help=about, context_settings=ACCEPT_ALL)(_refusing(problem))
    return app


def _add(app: typer.Typer, name: str) -> None:
    if name in NOUNS:
        app.add_typer(import_module(f"avow.cli.{name}").app, name=name)
    elif name in COMMANDS:
        app.command(name)(getattr(import_module(f"avow.cli.{name}"), name))
    else:
        app.command(name)(_load(name))


def _load(name: str) -> Callable[..., object]:
    """A command of another package. Raises InvalidRequest, NotInstalled."""
    found = sorted({plugin.value: plugin for plugin in plugins().select(name=name)}.items())
    if len(found) > 1:
        places = " and ".join(place for place, _ in found)
        raise InvalidRequest(
            f"several packages provide `avow {name}` ({places}); nothing was done. Uninstall all but one"
        )
    ((place, plugin),) = found
    try:
        return cast(Callable[..., object], plugin.load())
    except (ImportError, AttributeError) as cause:
        raise InvalidRequest(
            f"`avow {name}` cannot be loaded from {place} ({cause}); nothing was done. Install its package again"
        ) from cause


def plugins() -> EntryPoints:
    return entry_points(group=PLUGINS)


def _plugged() -> list[str]:
    """Names of commands from other packages. They cannot replace a built-in command."""
    return sorted(plugins().names - {*COMMANDS, *NOUNS})


def _refusing(problem: AvowError) -> Callable[[], None]:
    """A command that accepts any arguments and reports why it is not available."""

    def refuse() -> None:
        raise problem

    return refuse


def _avow() -> None:
    """Without a callback, Typer would not expect the name of the command in an app that has only one."""


def main() -> None:
    named = sys.argv[1:2]
    known = named and (named[0] in (*COMMANDS, *NOUNS) or named[0] in plugins().names)
    try:
        (app_of(named) if known else app_of())()
    except AvowError as error:
        sys.exit(report(error, as_json="--json" in sys.argv))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader closed the pipe, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(REFUSED)
