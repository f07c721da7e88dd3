"""`avow prove`: its flags, and the scenario they choose."""

from __future__ import annotations

import enum
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from avow.errors import NotInstalled
from avow_lab.campaigns.harness.campaign import draw_seed
from avow_lab.campaigns.harness.reporting import Flags, Scenario, choose_one, run
from avow_lab.campaigns.peers.faults import KINDS
from avow_lab.campaigns.pledges.runs import DATABASES, RUNS, STORES
from avow_lab.mutations.peers import MUTATION_NAMES

NEED_SPARK: Final = ("chain", "spark")


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
        typer.Option(min=0.05, max=24 * 60.0, help="Minutes of load and faults. Default: 5."),
    ] = None,
    peers: Annotated[int, typer.Option(min=3, max=9, help="Number of peers at the start.")] = 3,
    seed: Annotated[int | None, typer.Option(min=0, help="Decides the faults. Default: random, and printed.")] = None,
    faults: Annotated[
        str,
        typer.Option(
            help=f"Kinds of faults, with commas between: {', '.join(KINDS)}, or none. With --chain: their number."
        ),
    ] = "all",
    strategy: Annotated[Strategy | None, typer.Option(help="Only queues of this strategy. Default: both.")] = None,
    network: Annotated[
        Network, typer.Option(help="Network between the peers. Namespaces need root; auto uses them where they work.")
    ] = Network.auto,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for data, history and verdict. It is not removed.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot the campaign over time to a .html or .png file.")] = None,
    pledges: Annotated[
        bool, typer.Option("--pledges", help="Test pledges: kill services and coordinators at every step.")
    ] = False,
    runs: Annotated[
        int | None, typer.Option(min=1, help=f"Number of kills. Default: {RUNS} with --pledges, 50 with --spark.")
    ] = None,
    store: Annotated[
        str, typer.Option(help=f"With --pledges: pledge stores, with commas between: {', '.join(STORES)}.")
    ] = "all",
    database: Annotated[
        str, typer.Option(help=f"With --pledges or --chain: databases of the service: {', '.join(DATABASES)}.")
    ] = "all",
    chain: Annotated[
        bool, typer.Option("--chain", help="Test the whole chain, from a shop's commit to a row of a Delta table.")
    ] = False,
    plant: Annotated[
        str, typer.Option(help="With --chain: plant an error that the audit must find: lost, doubled or orphan.")
    ] = "",
    spark: Annotated[
        bool, typer.Option("--spark", help="Test Spark: kill its driver and executors at every step of a batch.")
    ] = False,
    damage: Annotated[
        bool, typer.Option("--damage", help="Lose every kind of file, in every way, on a peer while another is away.")
    ] = False,
    mutation: Annotated[
        str,
        typer.Option(help=f"Break one rule of the peers, which the campaign must find: {', '.join(MUTATION_NAMES)}."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Run real peers under load, inject faults, heal them, and check the whole history of every client.

    Peers are killed with -9, paused, stalled, cut off, slowed, filled up, damaged on disk, added and removed, while
    clients stream, let transactions expire, read slowly and create many queues. Then the campaign checks that nothing
    acknowledged is lost, doubled or moved, that every message was sent, expected cursors, real time, monotonic reads,
    whole transactions, and that all peers agree. Exit codes: 0 all promises held, 1 a promise was broken, 2 the
    campaign could not run.

    With --damage one peer is stopped, the others go on and are killed, and one of these loses a file: deleted,
    shortened, zeroed, swapped, an old copy, or changed. It starts first with the peer that was away; the others follow.

    With --pledges a service and its coordinator are killed at every step of prepare, work, commit, submit and branch.
    Then each pledge must be delivered if and only if it was committed, each branch once.

    With --chain a shop's orders go through pledges and a queue to a Delta table, while service, peers, Spark's driver
    and its workers are killed. Then an audit joins database, barrier, pledges, queue and table by id.

    With --spark the driver and executors of streams from a queue to a queue and to a Delta table are killed at every
    step of a batch. Then the rows of both are counted by id.
    """
    flags = Flags(
        minutes=minutes,
        peers=peers,
        seed=draw_seed(seed),
        faults=faults,
        strategy=strategy or "",
        network=network,
        folder=str(folder or ""),
        keep=keep,
        plot=str(plot or ""),
        runs=runs,
        store=store,
        database=database,
        plant=plant,
        mutation=choose_one("--mutation", mutation, MUTATION_NAMES) if mutation else "",
        as_json=as_json,
    )
    chosen = {"spark": spark, "chain": chain, "pledges": pledges}
    name = next((name for name, given in chosen.items() if given), "peers")
    run(_scenario(name, "DAMAGE" if damage and name == "peers" else "SCENARIO"), flags)


def _scenario(name: str, which: str) -> Scenario[Any, Any]:
    """Imported when it is chosen, because two of them need Spark."""
    try:
        scenario: Scenario[Any, Any] = getattr(import_module(f"avow_lab.campaigns.{name}.command"), which)
    except (ImportError, NotInstalled) as missing:
        if name not in NEED_SPARK:
            raise
        sys.stderr.write(f"avow: {NotInstalled(f'avow prove --{name}', extra='spark')}\n")
        raise typer.Exit(2) from missing
    return scenario
