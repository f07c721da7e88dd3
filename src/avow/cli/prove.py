"""`avow prove`: break a real cluster on purpose, then check everything every client was told."""

from __future__ import annotations

import asyncio
import enum
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from avow.cli.campaigns import ProgressLines, checks_table, drawn
from avow.cli.prove_pledges import RUNS, prove_pledges_command
from avow.errors import AvowError, NotInstalled
from avow.testing.prove.campaign import Options, Progress, prove
from avow.testing.prove.faults import KINDS
from avow.testing.prove.verdict import Verdict
from avow.testing.prove_pledges.runs import DATABASES, STORES

FINDINGS_SHOWN = 10
MINUTES = 5.0


class Strategy(enum.StrEnum):
    two_phase = "two-phase"
    pub_sub = "pub-sub"


class Network(enum.StrEnum):
    auto = "auto"
    proxy = "proxy"
    namespaces = "namespaces"


def prove_command(
    minutes: Annotated[
        float | None,
        typer.Option(min=0.05, max=24 * 60.0, help="How long the load and the faults last; without it 5."),
    ] = None,
    peers: Annotated[int, typer.Option(min=3, max=9, help="Peers to begin with.")] = 3,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Decides the faults; without it one is drawn and shown.")
    ] = None,
    faults: Annotated[
        str,
        typer.Option(help=f"Which, with commas between: {', '.join(KINDS)}, or none. With --chain: how many."),
    ] = "all",
    strategy: Annotated[Strategy | None, typer.Option(help="Only queues of this strategy; without it both.")] = None,
    network: Annotated[
        Network, typer.Option(help="Between peers: namespaces need root; auto takes them where it can.")
    ] = Network.auto,
    folder: Annotated[Path | None, typer.Option(help="Where to put data, history and verdict; kept.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the campaign over time: a .html or .png file.")] = None,
    pledges: Annotated[
        bool, typer.Option("--pledges", help="Pledges instead: kill services and coordinators at every step.")
    ] = False,
    runs: Annotated[
        int | None, typer.Option(min=1, help=f"How many kills: with --pledges {RUNS}, with --spark 50 without it.")
    ] = None,
    store: Annotated[str, typer.Option(help=f"With --pledges: {', '.join(STORES)}, with commas between.")] = "all",
    database: Annotated[
        str, typer.Option(help=f"With --pledges or --chain: of the service: {', '.join(DATABASES)}.")
    ] = "all",
    chain: Annotated[
        bool, typer.Option("--chain", help="The whole chain instead: from a shop's commit to a row of a Delta table.")
    ] = False,
    plant: Annotated[str, typer.Option(help="With --chain: an error on purpose: lost, doubled or orphan.")] = "",
    spark: Annotated[
        bool, typer.Option("--spark", help="Spark instead: kill its driver and executors at every step of a batch.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Run real peers under load, break them, heal them, and check the whole history of every client.

    Peers are killed with -9, paused, cut off, slowed, filled up, damaged on disk, added and removed. Then it is checked
    that nothing acknowledged is lost, doubled or moved, that nothing came from nowhere, expected cursors, real time,
    monotonic reads, whole transactions, and that all peers agree. Exit code 0: held, 1: violated, 2: could not run.

    With --pledges a service and its coordinator are killed at every step of prepare, work, commit, submit and branch;
    then it is checked that what was pledged is delivered if and only if it was committed, each branch once.

    With --chain a shop's orders go through pledges and a queue to a Delta table, while service, peers, Spark's driver
    and its workers are killed; then an audit joins database, barrier, pledges, queue and table by id.

    With --spark streams from a queue to a queue and to a Delta table are killed at every step of a batch; then the rows
    are counted by id in both.
    """
    if spark:
        _spark_command()(runs=runs, seed=seed, peers=peers, folder=folder, keep=keep, as_json=as_json)
    if chain:
        _chain_command()(
            faults=faults,
            minutes=minutes,
            seed=seed,
            peers=peers,
            database=database,
            plant=plant,
            folder=folder,
            keep=keep,
            as_json=as_json,
        )
    if pledges:
        prove_pledges_command(
            runs=runs or RUNS, seed=seed, store=store, database=database, folder=folder, keep=keep, as_json=as_json
        )
    options = Options(
        seconds=(minutes or MINUTES) * 60,
        peers=peers,
        seed=drawn(seed),
        faults=_kinds(faults),
        strategy=strategy.value if strategy else "",
        network=network.value,
        folder=str(folder) if folder else "",
        keep=keep or folder is not None,
        plot=str(plot) if plot else "",
    )
    console = Console(highlight=False, quiet=as_json, stderr=False)
    try:
        verdict = asyncio.run(_run(console, options, as_json=as_json))
    except asyncio.CancelledError:
        sys.stderr.write(f"avow: the campaign (seed {options.seed}) was ended before its verdict\n")
        raise typer.Exit(2) from None
    except (AvowError, OSError) as error:
        sys.stderr.write(f"avow: the campaign (seed {options.seed}) could not run: {error}\n")
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(msgspec.json.encode(verdict).decode())
    else:
        print_verdict(console, verdict)
    raise typer.Exit(0 if verdict.clean else 1)


def _chain_command() -> Callable[..., NoReturn]:
    """Imported when it is asked for: it needs Spark."""
    try:
        from avow.cli.prove_chain import prove_chain_command
    except NotInstalled as error:
        sys.stderr.write(f"avow: {error}\n")
        raise typer.Exit(2) from error
    return prove_chain_command


def _spark_command() -> Callable[..., NoReturn]:
    try:
        from avow.cli.prove_spark import prove_spark_command
    except NotInstalled as error:
        sys.stderr.write(f"avow: {error}\n")
        raise typer.Exit(2) from error
    return prove_spark_command


def _kinds(text: str) -> tuple[str, ...]:
    if text == "all":
        return KINDS
    wanted = tuple(part.strip() for part in text.split(",") if part.strip() and part.strip() != "none")
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown:
        raise typer.BadParameter(f"there is no fault {unknown[0]!r}; there are {', '.join(KINDS)}")
    return wanted


# ---------------------------------------------------------------------- progress


async def _run(console: Console, options: Options, *, as_json: bool) -> Verdict:
    campaign = asyncio.current_task()
    assert campaign is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, campaign.cancel)  # peers and mounts must go, too
    if as_json:
        return await prove(options)
    console.print(
        f"seed {options.seed}: {options.peers} peers, {options.seconds / 60:g} min, "
        f"faults: {', '.join(options.faults) or 'none'}"
    )
    if not console.is_terminal:
        return await prove(options, report=ProgressLines(console, progress_line))
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        return await prove(options, report=lambda progress: live.update(Text(progress_line(progress))))


def progress_line(progress: Progress) -> str:
    what = f"; now: {progress.fault}" if progress.fault else ""
    return (
        f"{progress.elapsed_s:6.1f} s  {progress.phase}: {progress.done:,} done, {progress.refused:,} refused, "
        f"{progress.unknown:,} unknown; {progress.faults} faults{what}"
    )


# ---------------------------------------------------------------------- verdict


def print_verdict(console: Console, verdict: Verdict) -> None:
    console.print(f"{verdict.duration_s:.0f} s under load, {verdict.peers} peers, network: {verdict.network}")
    console.print(checks_table(verdict.checked, verdict.violations))
    console.print(_operations(verdict))
    console.print(_faults(verdict))
    if verdict.resumed:
        console.print(_resumed(verdict))
    for gap in verdict.gaps:
        longest = f"{gap.queue}: longest time without an acknowledged write {gap.gap_s:.2f} s"
        console.print(f"{longest}, from {gap.at_s:.1f} s ({gap.during})", soft_wrap=True, markup=False)
    for queue, codes in verdict.refusals.items():
        said = ", ".join(f"{code} {count:,}" for code, count in codes.items())
        console.print(f"{queue}: writes refused: {said}", soft_wrap=True, markup=False)
    for note in verdict.notes:
        console.print(f"left out: {note}", soft_wrap=True, markup=False)
    if verdict.folder:
        console.print(f"history and verdict: {verdict.folder}{os.sep}", soft_wrap=True, markup=False)
    if verdict.plot:
        console.print(f"over time: {verdict.plot}", soft_wrap=True, markup=False)
    _print_outcome(console, verdict)


def _print_outcome(console: Console, verdict: Verdict) -> None:
    for finding in verdict.findings[:FINDINGS_SHOWN]:
        console.print(f"{finding.anomaly}: {finding.queue}: {finding.what}", soft_wrap=True, markup=False, style="red")
    for trouble in verdict.troubles[:FINDINGS_SHOWN]:
        console.print(f"no client should see this: {trouble}", soft_wrap=True, markup=False, style="red")
    if verdict.stuck:
        console.print(f"not whole again: {verdict.stuck}", soft_wrap=True, markup=False, style="red")
    done = f"{verdict.acknowledged:,} messages acknowledged through {len(verdict.faults)} faults"
    if verdict.clean:
        console.print(f"[bold green]All promises held.[/] {done}, 0 violations (seed {verdict.seed}).")
        return
    found = sum(verdict.violations.values())
    console.print(f"[bold red]Broken:[/] {done}, {found} violations (seed {verdict.seed}).")


def _operations(verdict: Verdict) -> Table:
    table = Table()
    table.add_column("operations")
    for outcome in ("done", "refused", "unknown"):
        table.add_column(outcome, justify="right")
    for kind, counts in verdict.operations.items():
        table.add_row(kind, *(f"{counts.get(outcome, 0):,}" for outcome in ("done", "refused", "unknown")))
    return table


def _faults(verdict: Verdict) -> Table:
    table = Table()
    for name in ("fault", "times", "longest, s"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    kinds = dict.fromkeys(fault.kind for fault in verdict.faults)
    for kind in sorted(kinds):
        lengths = [(fault.ended_ns - fault.started_ns) / 1e9 for fault in verdict.faults if fault.kind == kind]
        table.add_row(kind, str(len(lengths)), f"{max(lengths):.1f}")
    return table


def _resumed(verdict: Verdict) -> Table:
    table = Table()
    table.add_column("coordinator killed")
    table.add_column("at, s", justify="right")
    table.add_column("writes resumed after, s", justify="right")
    for one in verdict.resumed:
        table.add_row(one.what, f"{one.at_s:.1f}", f"{one.after_s:.2f}")
    return table
