"""`avow prove --chain`: kill everything between a shop's commit and a table's row, then close the books."""

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

from avow.errors import AvowError, NotInstalled

try:
    from avow.testing.prove_chain.campaign import FAULTS, Options, Progress, Verdict, prove_chain
    from avow.testing.prove_chain.chain import DATABASES
    from avow.testing.prove_chain.planting import PLANTS
except (ImportError, NotInstalled) as missing:  # PySpark and its companions
    raise NotInstalled("avow prove --chain", extra="spark") from missing

PLAIN_LINE_S: Final = 10.0
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
        seed=random.SystemRandom().randrange(1 << 31) if seed is None else seed,
        peers=peers,
        database="postgres" if database == "all" else _one("--database", database, DATABASES),
        plant=_one("--plant", plant, PLANTS) if plant else None,
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


def _run(console: Console, options: Options, *, as_json: bool) -> Verdict:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)  # processes must go, too
    bound = f" within {options.seconds / 60:g} min" if options.seconds else ""
    planted = f"; planted: {options.plant}" if options.plant else ""
    console.print(
        f"seed {options.seed}: {options.faults} faults{bound}; {options.peers} peers, a shop on {options.database}, "
        f"Spark on {options.master}{planted}",
        markup=False,
        soft_wrap=True,
    )
    if as_json:
        return prove_chain(options)
    if not console.is_terminal:
        return prove_chain(options, tell=ProgressLines(console))
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        return prove_chain(options, tell=lambda progress: live.update(Text(progress_line(progress))))


def _end(*_: object) -> NoReturn:
    raise SystemExit(2)


class ProgressLines:
    """Without a terminal: a line when the phase changes, and one every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase, self._next_s = "", 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.phase == self._phase and progress.elapsed_s < self._next_s:
            return
        self._phase, self._next_s = progress.phase, progress.elapsed_s + PLAIN_LINE_S
        self._console.print(progress_line(progress), markup=False, soft_wrap=True)


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
