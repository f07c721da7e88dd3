"""`avow prove --pledges`: kill services and coordinators at every step of a pledge, then check what came of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from avow.cli.campaigns import checks_table, conclude, drawn, end_on_sigterm, watched
from avow.testing.prove_pledges.campaign import Options, Progress, Verdict, prove_pledges
from avow.testing.prove_pledges.crashes import POINTS, VICTIMS
from avow.testing.prove_pledges.runs import DATABASES, STORES

RUNS: Final = 2000
FINDINGS_SHOWN: Final = 10

K = TypeVar("K", bound=str)


def prove_pledges_command(
    *, runs: int, seed: int | None, store: str, database: str, folder: Path | None, keep: bool, as_json: bool
) -> NoReturn:
    options = Options(
        runs=runs,
        seed=drawn(seed),
        stores=_chosen(store, STORES),
        databases=_chosen(database, DATABASES),
        folder=str(folder) if folder else "",
        keep=keep,
    )
    conclude(lambda console: _run(console, options), seed=options.seed, as_json=as_json, show=print_verdict)


def _chosen(text: str, known: Sequence[K]) -> tuple[K, ...]:
    if text == "all":
        return tuple(known)
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise typer.BadParameter(f"there is no {', '.join(unknown) or 'name'}; there are {', '.join(known)}")
    return tuple(name for name in known if name in wanted)


def _run(console: Console, options: Options) -> Verdict:
    end_on_sigterm()
    console.print(
        f"seed {options.seed}: {options.runs:,} runs; stores: {', '.join(options.stores)}; "
        f"databases: {', '.join(options.databases)}"
    )
    return watched(console, lambda report: prove_pledges(options, report=report), progress_line)


def progress_line(progress: Progress) -> str:
    return (
        f"{progress.elapsed_s:6.1f} s  {progress.phase}: {progress.runs:,} of {progress.of:,} runs, "
        f"{progress.kills:,} processes killed"
    )


def print_verdict(console: Console, verdict: Verdict) -> None:
    console.print(_cells(verdict))
    console.print(checks_table(verdict.checked, verdict.violations))
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
