"""The `avow` command. Flags only: each command's work and its picture are in a module of its own."""

from __future__ import annotations

import sys

import typer

from avow.cli.simulate import simulate
from avow.errors import AvowError

app = typer.Typer(
    help="Avow carries a message from a database commit to a Spark table exactly once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(simulate)


@app.callback()
def avow() -> None:
    """Avow carries a message from a database commit to a Spark table exactly once."""


def main() -> None:
    try:
        app()
    except AvowError as error:
        sys.stderr.write(f"avow: {error.code}: {error}\n")
        sys.exit(2)
