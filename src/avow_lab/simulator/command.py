"""`avow simulate`: check the promises on whole simulated clusters, and print the result."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from avow_lab.mutations.hunt import Caught
from avow_lab.simulator.runner import MUTATIONS_COUNT, Campaign, Sum, run_campaign, run_mutations
from avow_lab.simulator.simulation import simulate as simulate_seed

TRACE_LINES: Final = 60
SHOWN: Final = (
    "crashes",
    "partitions",
    "messages lost",
    "messages repeated",
    "damaged logs",
    "peers joined",
    "peers gone",
    "queues created",
    "queues deleted",
    "trims by rule",
)


class Strategy(enum.StrEnum):
    two_phase = "two-phase"
    pub_sub = "pub-sub"
    mixed = "mixed"


def simulate(
    strategy: Annotated[Strategy, typer.Option(help="How the simulated queues are replicated.")] = Strategy.mixed,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 200,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Run only this seed and print its last events.")] = None,
    peers: Annotated[int, typer.Option(min=0, max=9, help="Peers in each cluster; 0: three or five, by seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print all events.")] = False,
    mutations: Annotated[
        bool, typer.Option("--mutations", help="Break one rule at a time; the checkers must catch every mistake.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Simulate whole clusters, each in one thread: lossy networks, failing disks, wrong clocks, crashes at any step.

    Each peer runs the same node as a real process, with several queues that are created, deleted and trimmed, and with
    members that join and leave. Checked at every event: agreement, nothing acknowledged is lost, nothing is there
    twice, nothing was never written, expected cursors, real time, monotonic cursors, one change of voters at a time.
    Checked after everything is healed: progress, and that every peer holds exactly what it should. Exit code 1: a
    violation.
    """
    console = Console(highlight=False, quiet=as_json)
    if mutations:
        _show_mutations(console, jobs=jobs, as_json=as_json)
    elif seed is not None:
        _show_seed(console, strategy.value, seed, peers=peers, whole=trace, as_json=as_json)
    else:
        _show_campaign(
            console, strategy.value, seeds=seeds, first_seed=first_seed, peers=peers, jobs=jobs, as_json=as_json
        )


# ---------------------------------------------------------------------- a campaign


def _show_campaign(
    console: Console, strategy: str, *, seeds: int, first_seed: int, peers: int, jobs: int, as_json: bool
) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=as_json) as bar:
        task = bar.add_task(strategy, total=seeds, note="")

        def grow(so_far: Campaign) -> None:
            total = so_far.total
            note = f"{total.events / 1e6:.1f} M events, {so_far.failed} violations"
            bar.update(task, completed=total.seeds, note=note)

        campaign = run_campaign(strategy, seeds=seeds, first_seed=first_seed, peers=peers, jobs=jobs, progress=grow)
    if as_json:
        _print_json(_as_json(campaign))
    else:
        _print_campaign(console, campaign)
    raise typer.Exit(0 if campaign.held else 1)


def _print_campaign(console: Console, campaign: Campaign) -> None:
    table = Table(title=f"{campaign.strategy}: seeds {_span(campaign)}", title_justify="left", caption_justify="left")
    table.add_column("")
    sizes = sorted(campaign.by_peers)
    for size in sizes:
        table.add_column(f"{size} peers", justify="right")
    table.add_column("all", justify="right")
    sums = [campaign.by_peers[size] for size in sizes] + [campaign.total]
    for name, cells in _rows(sums):
        table.add_row(name, *cells)
    console.print(table)
    total = campaign.total
    console.print(
        f"{campaign.wall_s:.1f} s on {campaign.jobs} processes, {total.events / max(total.cpu_s, 1e-9):,.0f} events "
        f"per second and core; {campaign.repeated} seeds run twice, {len(campaign.unstable)} with a different trace; "
        f"hash of all traces {campaign.hash}"
    )
    if campaign.held:
        console.print(f"[bold green]All promises held[/] in {total.seeds:,} runs. 0 violations.")
        return
    if campaign.failures:
        _print_trace_end(console, campaign.strategy, campaign.failures[0][0], peers=campaign.peers)
    for seed, violation in campaign.failures[:5]:
        console.print(f"[bold red]seed {seed}[/]: {violation}", markup=True, soft_wrap=True)
        console.print(f"  run it again: {_again(campaign, seed)}", soft_wrap=True)
    for seed in campaign.unstable[:5]:
        console.print(
            f"[bold red]seed {seed}[/] has two different traces: some code reads the clock or iterates over a set"
        )
    console.print(f"[bold red]{campaign.failed} of {total.seeds:,} runs broke a promise.[/]")


def _again(campaign: Campaign, seed: int) -> str:
    peers = f" --peers {campaign.peers}" if campaign.peers else ""
    return f"avow simulate --strategy {campaign.strategy}{peers} --seed {seed} --trace"


def _print_trace_end(console: Console, strategy: str, seed: int, *, peers: int) -> None:
    console.print(f"the last {TRACE_LINES} lines of seed {seed}:")
    for line in simulate_seed(seed, strategy=strategy, peers=peers, tracing=True).trace[-TRACE_LINES:]:
        console.print(line, markup=False, soft_wrap=True)


def _rows(sums: list[Sum]) -> list[tuple[str, list[str]]]:
    rows = [
        ("seeds", [f"{part.seeds:,}" for part in sums]),
        ("events", [f"{part.events:,}" for part in sums]),
        ("acknowledged writes", [f"{part.acknowledged:,}" for part in sums]),
    ]
    return rows + [(name, [f"{part.counts.get(name, 0):,}" for part in sums]) for name in SHOWN]


def _span(campaign: Campaign) -> str:
    return f"{campaign.first_seed} to {campaign.first_seed + campaign.total.seeds - 1}"


def _as_json(campaign: Campaign) -> dict[str, Any]:
    total = campaign.total
    return {
        "strategy": campaign.strategy,
        "first_seed": campaign.first_seed,
        "seeds": total.seeds,
        "violations": campaign.failed,
        "failures": [{"seed": seed, "violation": violation} for seed, violation in campaign.failures],
        "events": total.events,
        "acknowledged": total.acknowledged,
        "events_per_core_second": total.events / max(total.cpu_s, 1e-9),
        "wall_s": campaign.wall_s,
        "jobs": campaign.jobs,
        "repeated": campaign.repeated,
        "unstable": campaign.unstable,
        "hash": campaign.hash,
        "counts": total.counts,
        "by_peers": {str(size): msgspec.to_builtins(part) for size, part in sorted(campaign.by_peers.items())},
    }


# ---------------------------------------------------------------------- one seed


def _show_seed(console: Console, strategy: str, seed: int, *, peers: int, whole: bool, as_json: bool) -> None:
    verdict = simulate_seed(seed, strategy=strategy, peers=peers, tracing=True)
    if as_json:
        _print_json(msgspec.to_builtins(verdict))
    else:
        for line in verdict.trace if whole else verdict.trace[-TRACE_LINES:]:
            console.print(line, markup=False, soft_wrap=True)
        if not whole and len(verdict.trace) > TRACE_LINES:
            console.print(f"(the last {TRACE_LINES} lines; --trace shows the whole run)")
        console.print(
            f"seed {seed}: {verdict.peers} peers, {verdict.events:,} events, {verdict.acknowledged} acknowledged, "
            f"trace hash {verdict.hash}"
        )
        if verdict.violation:
            console.print(f"[bold red]broken:[/] {verdict.violation}", soft_wrap=True)
        else:
            console.print("[bold green]All promises held.[/]")
    raise typer.Exit(1 if verdict.violation else 0)


# ---------------------------------------------------------------------- mutations


def _show_mutations(console: Console, *, jobs: int, as_json: bool) -> None:
    columns = (TextColumn("hunting"), BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=as_json) as bar:
        task = bar.add_task("", total=MUTATIONS_COUNT)
        caught: list[Caught] = run_mutations(
            jobs=jobs, progress=lambda one: bar.update(task, advance=1, description=one.name)
        )
    survivors = [one for one in caught if not one.seeds]
    if as_json:
        _print_json({"survivors": [one.name for one in survivors], "mutations": msgspec.to_builtins(caught)})
    else:
        _print_mutations(console, caught, survivors)
    raise typer.Exit(1 if survivors else 0)


def _print_mutations(console: Console, caught: list[Caught], survivors: list[Caught]) -> None:
    table = Table(title="Each mutation breaks one rule and must be caught.", title_justify="left")
    table.add_column("strategy")
    table.add_column("mistake")
    table.add_column("seeds needed", justify="right")
    table.add_column("caught by")
    for one in caught:
        seen = one.violation.split(":")[0] if one.seeds else "[bold red]survived[/]"
        table.add_row(one.strategy, f"{one.name}{' *' if one.listed else ''}", str(one.seeds or "-"), seen)
    console.print(table)
    console.print("* listed in the design; the others were added")
    if survivors:
        console.print(f"[bold red]{len(survivors)} of {len(caught)} survived: the checkers miss them.[/]")
    else:
        console.print(f"[bold green]All {len(caught)} mistakes were caught.[/]")


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.encode(value).decode())
