"""Formatting of command output: JSON for programs, tables and one-line sentences for people, errors, and amounts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from avow.errors import AvowError, InvalidRequest, Offline, Unknown

PIPE_CHARS: Final = 200
OK: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNKNOWN: Final = 3
UNREACHABLE: Final = 4


def console() -> Console:
    """As wide as the terminal. Without one, wide enough that words in a pipe are not broken."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_CHARS)


def print_json(value: object) -> None:
    typer.echo(msgspec.json.encode(value))


def plain(text: str) -> str:
    """A user's text with its brackets escaped, so that Rich does not read them as markup."""
    return escape(text)


def table(title: str, *columns: str, rows: Iterable[Sequence[str]], empty: str = "") -> Table | str:
    """A column whose name begins with ">" is right-aligned. Without rows, the sentence `empty` is returned instead."""
    made = Table(
        title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        right = column.startswith(">")
        made.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold", header_style="dim"
        )
    for row in rows:
        made.add_row(*row)
    return made if made.rows or not empty else empty


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def numbers(values: Iterable[int]) -> str:
    return " ".join(str(value) for value in values) or "-"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_text(count_bytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count_bytes < 1000:
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:.1f} TB"


def duration_text(duration_s: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if duration_s >= size:
            return f"{duration_s / size:g} {unit}"
    return f"{duration_s:g} s"


# ---------------------------------------------------------------------- errors


def exit_code(error: AvowError) -> int:
    """0: done, 1: refused, 3: unknown, 4: no peer could be reached or no quorum. Typer returns 2 for wrong usage."""
    if isinstance(error, Unknown):
        return UNKNOWN
    return UNREACHABLE if isinstance(error, Offline) else REFUSED


def report(error: AvowError, *, as_json: bool) -> int:
    """Write the error to stderr and return the exit code."""
    if as_json:
        body = {"code": error.code, "message": str(error), "definite": error.definite, "retriable": error.retriable}
        sys.stderr.write(msgspec.json.encode({"error": {**body, **error.details()}}).decode() + "\n")
    else:
        sys.stderr.write(f"avow: {error.code}: {error}\n")
    return exit_code(error)


# ---------------------------------------------------------------------- amounts that people write

SIZES: Final = {"": 1, "b": 1, "k": 1000, "kb": 1000, "mb": 10**6, "m": 10**6, "gb": 10**9, "g": 10**9, "tb": 10**12}
TIMES: Final = {"": 1, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parsed_size(text: str) -> int | None:
    """10GB -> bytes; "none" -> None."""
    return _amount(text, SIZES, example="500MB, 10GB or none")


def parsed_duration(text: str) -> int | None:
    """7d -> seconds; "none" -> None."""
    return _amount(text, TIMES, example="90s, 12h, 7d or none")


def _amount(text: str, units: dict[str, int], *, example: str) -> int | None:
    if text == "none":
        return None
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text[len(digits) :].strip().lower()
    if not digits.isdigit() or unit not in units:
        raise InvalidRequest(f"{text!r} is not a valid amount; nothing was changed. Write it as {example}")
    return int(digits) * units[unit]
