"""`avow prove --spark`: kill Spark's driver and executors at every step of a batch, then count the rows by id."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console
from rich.table import Table

from avow.cli.campaigns import conclude, drawn, end_on_sigterm, watched
from avow.errors import NotInstalled

try:
    from avow.testing.prove_spark.campaign import RUNS, Options, Progress, Verdict, prove_spark
    from avow.testing.prove_spark.watching import STEPS
except (ImportError, NotInstalled) as missing:  # PySpark and its companions
    raise NotInstalled("avow prove --spark", extra="spark") from missing

BOOKS: Final = ("lost", "doubled", "foreign")


def prove_spark_command(
    *, runs: int | None, seed: int | None, peers: int, folder: Path | None, keep: bool, as_json: bool
) -> NoReturn:
    options = Options(
        runs=RUNS if runs is None else runs,
        seed=drawn(seed),
        peers=peers,
        folder=str(folder) if folder else "",
        keep=keep,
    )
    conclude(lambda console: _run(console, options), seed=options.seed, as_json=as_json, show=print_verdict)


def _run(console: Console, options: Options) -> Verdict:
    end_on_sigterm()
    console.print(f"seed {options.seed}: {options.runs} kills; {options.peers} peers", soft_wrap=True)
    return watched(console, lambda tell: prove_spark(options, tell=tell), progress_line)


def progress_line(progress: Progress) -> str:
    return f"{progress.elapsed_s:6.1f} s  kill {progress.run} of {progress.of}: {progress.phase}"


# ---------------------------------------------------------------------- verdict


def print_verdict(console: Console, verdict: Verdict) -> None:
    console.print(_hits(verdict))
    console.print(_books(verdict))
    workers = sum(run.aim.victim == "worker" for run in verdict.runs)
    on_cluster = sum(run.aim.on_cluster for run in verdict.runs)
    lines = [
        f"killed with -9: driver {len(verdict.runs) - workers}, worker or executor {workers}",
        f"on a cluster: {on_cluster} of them; {verdict.speculated} attempts were speculative there",
        f"batches: {', '.join(f'{name} {count:,}' for name, count in verdict.batches.items())}",
    ]
    if verdict.folder:
        lines.append(f"logs, checkpoints and verdict: {verdict.folder}{os.sep}")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    for name, books in verdict.books.items():
        for kind in BOOKS:
            if ids := getattr(books, kind):
                console.print(f"{kind} in the {name}: {', '.join(ids)}", soft_wrap=True, markup=False, style="red")
    done = (
        f"{verdict.rows:,} rows through {len(verdict.runs)} kills in {verdict.duration_s:.0f} s (seed {verdict.seed})"
    )
    if verdict.clean:
        console.print(f"[bold green]All promises held.[/] {done}: each of them once, in both.", soft_wrap=True)
    else:
        console.print(f"[bold red]Broken:[/] {done}.", soft_wrap=True)


def _hits(verdict: Verdict) -> Table:
    """Which step each query was in when it was hit; a kill hits both."""
    table = Table()
    table.add_column("hit while")
    for name in verdict.books:
        table.add_column(f"to a {name}", justify="right")
    hits = {name: Counter(run.hit.get(name, "idle") for run in verdict.runs) for name in verdict.books}
    for step in STEPS:
        table.add_row(step, *(str(hits[name][step]) for name in verdict.books))
    return table


def _books(verdict: Verdict) -> Table:
    table = Table()
    for name in ("target", "rows", *BOOKS):
        table.add_column(name, justify="left" if name == "target" else "right")
    for name, books in verdict.books.items():
        counts = [len(getattr(books, kind)) for kind in BOOKS]
        table.add_row(name, f"{books.rows:,}", *(f"[bold red]{count}[/]" if count else "0" for count in counts))
    return table
