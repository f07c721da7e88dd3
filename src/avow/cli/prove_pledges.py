"""`avow prove --pledges`: kill services and coordinators at every step of a pledge, then check what came of each."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from avow.errors import AvowError
from avow.testing.prove_pledges.campaign import Options, Progress, Verdict, prove_pledges
from avow.testing.prove_pledges.crashes import POINTS, VICTIMS
from avow.testing.prove_pledges.runs import DATABASES, STORES

RUNS: Final = 2000
FINDINGS_SHOWN: Final = 10
PLAIN_LINE_S: Final = 10.0

K = TypeVar("K", bound=str)


def prove_pledges_command(
    *, runs: int, seed: int | None, store: str, database: str, folder: Path | None, keep: bool, as_json: bool
) -> NoReturn:
    options = Options(
        runs=runs,
        seed=random.SystemRandom().randrange(1 << 31) if seed is None else seed,
        stores=_chosen(store, STORES),
        databases=_chosen(database, DATABASES),
        folder=str(folder) if folder else "",
        keep=keep,
    )
    console = Console(highlight=False, quiet=as_json)
    try:
        verdict = _run(console, options, as_json=as_json)
    except (AvowError, OSError) as error:
        sys.stderr.write(f"avow: the campaign (seed {options.seed}) could not run: {error}\n")
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(msgspec.json.encode(verdict).decode())
    else:
        print_verdict(console, verdict)
    raise typer.Exit(0 if verdict.clean else 1)


def _chosen(text: str, known: Sequence[K]) -> tuple[K, ...]:
    if text == "all":
        return tuple(known)
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise typer.BadParameter(f"there is no {', '.join(unknown) or 'name'}; there are {', '.join(known)}")
    return tuple(name for name in known if name in wanted)


def _run(console: Console, options: Options, *, as_json: bool) -> Verdict:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)  # processes must go, too
    console.print(
        f"seed {options.seed}: {options.runs:,} runs; stores: {', '.join(options.stores)}; "
        f"databases: {', '.join(options.databases)}"
    )
    if as_json:
        return prove_pledges(options)
    if not console.is_terminal:
        return prove_pledges(options, report=ProgressLines(console))
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        return prove_pledges(options, report=lambda progress: live.update(Text(progress_line(progress))))


def _end(*_: object) -> NoReturn:
    raise SystemExit(2)


class ProgressLines:
    """Without a terminal: one every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + PLAIN_LINE_S
            self._console.print(progress_line(progress), markup=False, soft_wrap=True)


def progress_line(progress: Progress) -> str:
    return (
        f"{progress.elapsed_s:6.1f} s  {progress.phase}: {progress.runs:,} of {progress.of:,} runs, "
        f"{progress.kills:,} processes killed"
    )


def print_verdict(console: Console, verdict: Verdict) -> None:
    console.print(_cells(verdict))
    console.print(_checks(verdict))
    points = ", ".join(f"{point} {count:,}" for point, count in sorted(verdict.points.items()))
    console.print(f"runs by the step somebody was killed at: {points}", soft_wrap=True, markup=False)
    met = f"{verdict.combinations:,} of {_all(verdict):,}"
    console.print(
        f"combinations of store, database, step and victim that were met: {met}", soft_wrap=True, markup=False
    )
    told = ", ".join(f"{said or 'nothing'} {count:,}" for said, count in verdict.told.items())
    console.print(f"callers were told: {told}", soft_wrap=True, markup=False)
    if verdict.not_reached:
        console.print(f"over before it came to its step: {verdict.not_reached:,} runs", markup=False)
    if verdict.folder:
        console.print(f"logs and verdict: {verdict.folder}{os.sep}", soft_wrap=True, markup=False)
    for found in verdict.findings[:FINDINGS_SHOWN]:
        console.print(f"{found.anomaly}: {found.gid}: {found.what}", soft_wrap=True, markup=False, style="red")
    if verdict.stuck:
        console.print(f"could not go on: {verdict.stuck}", soft_wrap=True, markup=False, style="red")
    _print_outcome(console, verdict)


def _all(verdict: Verdict) -> int:
    return len(verdict.cells) * len(POINTS) * len(VICTIMS)


def _print_outcome(console: Console, verdict: Verdict) -> None:
    done = (
        f"{verdict.runs:,} runs in {verdict.duration_s:.0f} s, services killed {verdict.kills['service']:,} times and "
        f"coordinators {verdict.kills['coordinator']:,} times; {verdict.pledges:,} pledges, "
        f"{verdict.committed:,} committed"
    )
    if verdict.clean:
        said = f"[bold green]All promises held.[/] {done}, 0 violations (seed {verdict.seed})."
    else:
        said = f"[bold red]Broken:[/] {done}, {sum(verdict.violations.values())} violations (seed {verdict.seed})."
    console.print(said, soft_wrap=True)


def _cells(verdict: Verdict) -> Table:
    table = Table()
    for name in ("store", "database"):
        table.add_column(name)
    for name in ("runs", "killed", "pledges", "committed"):
        table.add_column(name, justify="right")
    for cell in verdict.cells:
        counts = (cell.runs, cell.kills, cell.pledges, cell.committed)
        table.add_row(cell.store, cell.database, *(f"{count:,}" for count in counts))
    return table


def _checks(verdict: Verdict) -> Table:
    table = Table()
    table.add_column("looked for")
    table.add_column("checked", justify="right")
    table.add_column("found", justify="right")
    for name, checked in verdict.checked.items():
        found = verdict.violations.get(name, 0)
        table.add_row(name, f"{checked:,}", f"[bold red]{found:,}[/]" if found else "0")
    return table
