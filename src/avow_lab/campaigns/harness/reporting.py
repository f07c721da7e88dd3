"""From the flags of `avow prove` to a verdict on the terminal and an exit code, the same for every scenario.

Exit codes: 0 all promises held, 1 a promise was broken, 2 the campaign could not run. On a terminal the progress line
is renewed in place. Without one, a line is printed when the phase changes, and every ten seconds. With --json only the
verdict is printed.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, NoReturn, TypeVar

import msgspec
import typer
from msgspec import Struct
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from avow.errors import AvowError, NotInstalled
from avow_lab.campaigns.harness.campaign import Campaign, O, Progress, V, prove

PLAIN_LINE_S: Final = 10.0
PROGRESS_S: Final = 0.5
FINDINGS_SHOWN: Final = 10

K = TypeVar("K", bound=str)


class Flags(Struct, frozen=True, kw_only=True):
    """The flags of `avow prove` as they were given; None: left out."""

    minutes: float | None
    peers: int
    seed: int
    faults: str
    strategy: str
    network: str
    folder: str
    keep: bool
    plot: str
    runs: int | None
    store: str
    database: str
    plant: str
    mutation: str
    as_json: bool


@dataclass(frozen=True, slots=True)
class Scenario(Generic[O, V]):
    """`options` raises typer.BadParameter. `headline` is printed before the campaign starts."""

    options: Callable[[Flags], O]
    headline: Callable[[O], str]
    campaign: Callable[[O, Path], Campaign[V]]
    print_verdict: Callable[[Console, V], None]


def choose(flag: str, text: str, known: Sequence[K]) -> tuple[K, ...]:
    """The names in a list with commas between, in the order of `known`; `all` means all of them."""
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in wanted if name not in (*known, "all")]
    if unknown or not wanted:
        raise typer.BadParameter(f"{flag}: there is no {', '.join(unknown) or 'name'}; there are {', '.join(known)}")
    return tuple(name for name in known if name in wanted or "all" in wanted)


def choose_one(flag: str, text: str, known: Sequence[K]) -> K:
    for name in known:
        if name == text:
            return name
    raise typer.BadParameter(f"{flag} is one of {', '.join(known)}, not {text!r}")


def run(scenario: Scenario[O, V], flags: Flags) -> NoReturn:
    """Run the campaign, print its verdict, and end the command with its exit code."""
    options = scenario.options(flags)
    console = Console(highlight=False, quiet=flags.as_json)
    say(console, f"seed {options.seed}: {scenario.headline(options)}")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        verdict = prove(scenario.campaign, options, watch=partial(show_progress, console))
    except SystemExit:
        sys.stderr.write(f"avow: SIGTERM ended the campaign (seed {options.seed}) before its verdict\n")
        raise typer.Exit(2) from None
    except NotInstalled:
        raise  # `avow` names the extra to install
    except (AvowError, OSError) as error:
        sys.stderr.write(f"avow: the campaign (seed {options.seed}) could not run: {error}\n")
        raise typer.Exit(2) from error
    if flags.as_json:
        typer.echo(msgspec.json.encode(verdict).decode())
    else:
        scenario.print_verdict(console, verdict)
    raise typer.Exit(0 if verdict.clean else 1)


def _terminate(*_: object) -> NoReturn:
    """As an exception, so that the campaign ends the processes it started."""
    raise SystemExit(2)


# ---------------------------------------------------------------------- progress


@contextmanager
def show_progress(console: Console, progress: Callable[[], Progress]) -> Iterator[None]:
    """While the block runs. A quiet console shows nothing."""
    if console.quiet:
        yield
    elif console.is_terminal:
        with Live(console=console, get_renderable=lambda: Text(progress().line()), transient=True):
            yield
    else:
        lines = ProgressLines(console)
        with repeated(lambda: lines(progress()), every_s=PROGRESS_S):
            yield


@contextmanager
def repeated(call: Callable[[], None], *, every_s: float) -> Iterator[None]:
    """Call something in a thread, again and again while the block runs."""
    stop = threading.Event()

    def loop() -> None:
        call()
        while not stop.wait(every_s):
            call()

    thread = threading.Thread(target=loop, name="avow-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class ProgressLines:
    """Prints a line when the phase has changed, or ten seconds after the last one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase, self._next_s = "", 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.phase == self._phase and progress.elapsed_s < self._next_s:
            return
        self._phase, self._next_s = progress.phase, progress.elapsed_s + PLAIN_LINE_S
        say(self._console, progress.line())


# ---------------------------------------------------------------------- verdict


def say(console: Console, *lines: str, style: str = "") -> None:
    for line in lines:
        console.print(line, style=style, soft_wrap=True, markup=False)


def print_wrong(console: Console, lines: Iterable[str]) -> None:
    say(console, *lines, style="red")


def print_outcome(console: Console, text: str, *, clean: bool, held: str = "All promises held.") -> None:
    console.print(f"[bold green]{held}[/] {text}" if clean else f"[bold red]Broken:[/] {text}", soft_wrap=True)


def table_of(left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """`left` and `right` name the columns that are aligned to the left and to the right."""
    table = Table()
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def checks_table(checked: Mapping[str, int], violations: Mapping[str, int]) -> Table:
    rows = [(name, f"{count:,}", found_count(violations.get(name, 0))) for name, count in checked.items()]
    return table_of(["looked for"], ["checked", "found"], rows)


def found_count(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "0"
