"""What the campaigns of `avow prove` have in common: a seed, a line while it runs, a verdict, an exit code.

Exit codes: 0 the promises held, 1 one was broken, 2 it could not run. On a terminal the line is renewed in place;
without one there is a line when the phase changes, and every ten seconds. With --json only the verdict is printed.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, Generic, NoReturn, Protocol, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from avow.errors import AvowError

PLAIN_LINE_S: Final = 10.0


class Phase(Protocol):
    @property
    def phase(self) -> str: ...
    @property
    def elapsed_s(self) -> float: ...


class Judged(Protocol):
    @property
    def clean(self) -> bool: ...


P = TypeVar("P", bound=Phase)
V = TypeVar("V", bound=Judged)


def drawn(seed: int | None) -> int:
    return random.SystemRandom().randrange(1 << 31) if seed is None else seed


def conclude(
    campaign: Callable[[Console], V], *, seed: int, as_json: bool, show: Callable[[Console, V], None]
) -> NoReturn:
    """Run it, show what came of it, and end with its exit code."""
    console = Console(highlight=False, quiet=as_json)
    try:
        verdict = campaign(console)
    except (AvowError, OSError) as error:
        sys.stderr.write(f"avow: the campaign (seed {seed}) could not run: {error}\n")
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(msgspec.json.encode(verdict).decode())
    else:
        show(console, verdict)
    raise typer.Exit(0 if verdict.clean else 1)


def end_on_sigterm() -> None:
    """As an exception: processes that were started must go, too."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)


def _end(*_: object) -> NoReturn:
    raise SystemExit(2)


def watched(console: Console, run: Callable[[Callable[[P], None]], V], line: Callable[[P], str]) -> V:
    """`run` gets whom to tell how far it is. A quiet console shows nothing of it."""
    if not console.is_terminal:
        return run(ProgressLines(console, line))
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        return run(lambda progress: live.update(Text(line(progress))))


class ProgressLines(Generic[P]):
    """Without a terminal: a line when the phase changes, and one every ten seconds."""

    def __init__(self, console: Console, line: Callable[[P], str]) -> None:
        self._console, self._line = console, line
        self._phase, self._next_s = "", 0.0

    def __call__(self, progress: P) -> None:
        if progress.phase == self._phase and progress.elapsed_s < self._next_s:
            return
        self._phase, self._next_s = progress.phase, progress.elapsed_s + PLAIN_LINE_S
        self._console.print(self._line(progress), markup=False, soft_wrap=True)


def checks_table(checked: Mapping[str, int], violations: Mapping[str, int]) -> Table:
    """What was looked for, how often, and how often it was found."""
    table = Table()
    table.add_column("looked for")
    table.add_column("checked", justify="right")
    table.add_column("found", justify="right")
    for name, count in checked.items():
        found = violations.get(name, 0)
        table.add_row(name, f"{count:,}", f"[bold red]{found:,}[/]" if found else "0")
    return table
