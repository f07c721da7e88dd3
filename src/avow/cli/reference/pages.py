"""Which pages are made, and by what; and the pages written by hand of which one table is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from avow.cli.reference.commands import commands_page
from avow.cli.reference.error_codes import errors_page
from avow.cli.reference.http_routes import routes_page
from avow.cli.reference.keys import pipeline_keys_page, spark_options_page
from avow.cli.reference.python_names import python_page
from avow.cli.serve import settings_table
from avow.errors import InvalidRequest
from avow.peer.metrics import FIGURES

MADE: Final = "<!-- made by `python -m avow.cli.reference`; changes belong into the code -->\n\n"


def metrics_table() -> str:
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for figure in FIGURES:
        labels = ", ".join(f"`{label}`" for label in figure.labels) or "-"
        lines.append(f"| `{figure.name}` | {figure.type} | {labels} | {figure.help} |")
    return "\n".join(lines) + "\n"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands.md": commands_page,
    "errors.md": errors_page,
    "http-routes.md": routes_page,
    "pipeline-keys.md": pipeline_keys_page,
    "python.md": python_page,
    "spark-options.md": spark_options_page,
}
TABLES: Final[Mapping[str, Callable[[], str]]] = {"metrics.md": metrics_table, "settings.md": settings_table}
"""The table with the same first line takes the place of the one that is there."""


def made(folder: Path) -> dict[str, str]:
    """Every page as the code has it. Raises InvalidRequest where a page has lost the table that belongs there."""
    pages = {name: MADE + page() for name, page in PAGES.items()}
    return pages | {name: _with(folder / name, table()) for name, table in TABLES.items()}


def _with(path: Path, table: str) -> str:
    head = table.partition("\n")[0]
    text, count = re.subn(rf"^{re.escape(head)}\n(?:\|.*\n)*", lambda _: table, path.read_text("utf-8"), flags=re.M)
    if count != 1:
        raise InvalidRequest(f"{path} has {count} tables that begin with {head}, not one; nothing was written")
    return text
