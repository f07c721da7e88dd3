"""`python -m tools.reference [--check] [--folder docs/reference]`: write the pages, or list those out of date."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.reference.pages import made

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def reference(
    folder: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("docs/reference"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if a page is out of date.")
    ] = False,
) -> None:
    """Write the reference pages that are generated from the code."""
    stale = {name: text for name, text in made(folder).items() if not _is(folder / name, text)}
    for name, text in stale.items():
        if not check:
            (folder / name).write_text(text, encoding="utf-8")
        typer.echo(f"{folder / name} {'is out of date' if check else 'written'}")
    raise typer.Exit(1 if check and stale else 0)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    app()
