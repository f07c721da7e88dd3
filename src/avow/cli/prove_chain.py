"""`avow prove --chain`: kill everything between a shop's commit and a table's row, then close the books."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from avow.cli.campaigns import conclude, drawn, end_on_sigterm, watched
from avow.errors import NotInstalled

try:
    from avow.testing.prove_chain.campaign import FAULTS, Options, Progress, Verdict, prove_chain
    from avow.testing.prove_chain.chain import DATABASES
    from avow.testing.prove_chain.planting import PLANTS
except (ImportError, NotInstalled) as missing:  # PySpark and its companions
    raise NotInstalled("avow prove --chain", extra="spark") from missing

KINDS: Final = ("lost", "doubled", "orphaned", "undecided")

K = TypeVar("K", bound=str)


def prove_chain_command(
    *,
    faults: str,
    minutes: float | None,
    seed: int | None,
    peers: int,
    database: str,
    plant: str,
    folder: Path | None,
    keep: bool,
    as_json: bool,
) -> NoReturn:
    options = Options(
        faults=_count(faults),
        seconds=60 * (minutes or 0.0),
        seed=drawn(seed),
        peers=peers,
        database="postgres" if database == "all" else _one("--database", database, DATABASES),
        plant=_one("--plant", plant, PLANTS) if plant else None,
        folder=str(folder) if folder else "",
        keep=keep,
    )
    conclude(lambda console: _run(console, options), seed=options.seed, as_json=as_json, show=print_verdict)


def _count(text: str) -> int:
    if text == "all":
        return FAULTS
    if not text.isdigit():
        raise typer.BadParameter(f"with --chain, --faults is how many there are, not {text!r}")
    return int(text)


def _one(flag: str, text: str, known: Sequence[K]) -> K:
    for name in known:
        if name == text:
            return name
    raise typer.BadParameter(f"{flag} is one of {', '.join(known)}, not {text!r}")


# ---------------------------------------------------------------------- progress


def _run(console: Console, options: Options) -> Verdict:
    end_on_sigterm()
    bound = f" within {options.seconds / 60:g} min" if options.seconds else ""
    planted = f"; planted: {options.plant}" if options.plant else ""
    console.print(
        f"seed {options.seed}: {options.faults} faults{bound}; {options.peers} peers, a shop on {options.database}, "
        f"Spark on {options.master}{planted}",
        markup=False,
        soft_wrap=True,
    )
    return watched(console, lambda tell: prove_chain(options, tell=tell), progress_line)


def progress_line(progress: Progress) -> str:
    now = f"; now: {progress.now}" if progress.now else ""
    return (
        f"{progress.elapsed_s:6.1f} s  {progress.phase}: {progress.faults} of {progress.of} faults; "
        f"{progress.orders:,} orders answered, {progress.messages:,} messages, {progress.rows:,} rows{now}"
    )


# ---------------------------------------------------------------------- verdict


def print_verdict(console: Console, verdict: Verdict) -> None:
    console.print(_stages(verdict))
    console.print(_checks(verdict))
    killed = ", ".join(f"{victim} {count}" for victim, count in sorted(verdict.faults.items())) or "nobody"
    lines = [
        f"killed with -9: {killed}",
        (
            f"customers were told: committed {verdict.told_committed:,}, rolled back {verdict.told_rolled_back:,}; "
            f"{verdict.repeated:,} questions had to be repeated"
        ),
    ]
    if verdict.folder:
        lines.append(f"logs, report and verdict: {verdict.folder}{os.sep}")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    for finding in verdict.report.findings:
        more = f" and {finding.count - len(finding.ids):,} more" if finding.count > len(finding.ids) else ""
        said = f"{finding.kind}: {finding.what}: {', '.join(finding.ids)}{more}"
        console.print(said, soft_wrap=True, markup=False, style="red")
    for wrong in verdict.misreported:
        console.print(f"misreported: {wrong}", soft_wrap=True, markup=False, style="red")
    if verdict.stuck:
        console.print(f"not everything was delivered: {verdict.stuck}", soft_wrap=True, markup=False, style="red")
    console.print(outcome(verdict), soft_wrap=True)


def outcome(verdict: Verdict) -> str:
    faults = sum(verdict.faults.values())
    done = f"{faults} faults in {verdict.duration_s:.0f} s (seed {verdict.seed})"
    if verdict.planted is not None:
        what = f"{verdict.planted.kind} {verdict.planted.id}"
        if verdict.clean:
            return f"[bold green]Planted error found.[/] The audit names {what}, and nothing else; {done}."
        return f"[bold red]Broken:[/] {what} was planted, and this is not exactly what the audit says; {done}."
    counts = (verdict.committed, verdict.messages, verdict.rows)
    books = f"{counts[0]:,} orders committed, {counts[1]:,} messages, {counts[2]:,} rows"
    if verdict.clean:
        equal = f"{counts[0]:,} orders committed = {counts[1]:,} messages = {counts[2]:,} rows"
        return f"[bold green]All promises held.[/] {equal}; {done}, 0 violations."
    return f"[bold red]Broken:[/] {books}; {done}."


def _stages(verdict: Verdict) -> Table:
    table = Table()
    for name in ("stage", "what"):
        table.add_column(name)
    for name in ("rows", "ids"):
        table.add_column(name, justify="right")
    for one in verdict.report.stages:
        table.add_row(one.stage, Text(one.what), f"{one.rows:,}", f"{one.ids:,}")
    return table


def _checks(verdict: Verdict) -> Table:
    table = Table()
    table.add_column("looked for")
    table.add_column("checked", justify="right")
    table.add_column("found", justify="right")
    ids = max(one.ids for one in verdict.report.stages)
    found = {finding.kind: verdict.report.count(finding.kind) for finding in verdict.report.findings}
    told = verdict.told_committed + verdict.told_rolled_back
    counts = [(kind, ids, found.get(kind, 0)) for kind in KINDS]
    for name, checked, wrong in [*counts, ("misreported", told, len(verdict.misreported))]:
        table.add_row(name, f"{checked:,}", f"[bold red]{wrong:,}[/]" if wrong else "0")
    return table
