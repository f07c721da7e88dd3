"""The `avow` command: a list of the others, and the one place where an error becomes a line and an exit code.

A command is imported when it is named on the line, all of them only for the list: a peer does not carry the simulator
around with it, and `avow enqueue` in a loop starts as quickly as it can.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final

import typer

from avow.cli.show import REFUSED, report
from avow.errors import AvowError, NotInstalled

ABOUT: Final = """Avow carries a message from a database commit to a Spark table exactly once.

Exit codes: 0 done, 1 refused, 2 wrong usage, 3 unknown whether it happened, 4 nobody could be reached.
"""
COMMANDS: Final = {
    "demo": "demo",
    "up": "up",
    "serve": "serve",
    "status": "status",
    "enqueue": "enqueue",
    "read": "read",
    "tail": "tail",
    "doctor": "doctor",
    "prove": "prove_command",
    "simulate": "simulate",
}
"""A module's name, which is the command's, and the function in it."""
NOUNS: Final = ("queue", "subscriber", "pledge", "pipeline", "peer")
"""Each is a module with an `app` of several commands."""
ANYTHING: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


def app_of(names: Iterable[str] = (*COMMANDS, *NOUNS)) -> typer.Typer:
    app = typer.Typer(
        help=ABOUT,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_avow)
    for name in names:
        try:
            module = import_module(f"avow.cli.{name}")
        except NotInstalled as missing:  # the others are there all the same
            app.command(name, help=f"Not here: pip install 'avow[{missing.extra}]'.", context_settings=ANYTHING)(
                _refusing(missing)
            )
            continue
        if name in NOUNS:
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, COMMANDS[name]))
    return app


def _refusing(missing: NotInstalled) -> Callable[[], None]:
    """A command that says what it needs, whatever it is given."""

    def refuse() -> None:
        raise missing

    return refuse


def _avow() -> None:
    """With a callback, an app of one command still expects its name."""


def main() -> None:
    named = sys.argv[1:2]
    known = named and named[0] in (*COMMANDS, *NOUNS)
    try:
        (app_of(named) if known else app_of())()
    except AvowError as error:
        sys.exit(report(error, as_json="--json" in sys.argv))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(REFUSED)
