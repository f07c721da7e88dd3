"""`avow prove`: options, and what is printed of the verdict."""

from __future__ import annotations

import os
from functools import partial
from typing import Final

import msgspec
from rich.console import Console

from avow_lab.campaigns.harness.reporting import (
    FINDINGS_SHOWN,
    Flags,
    Scenario,
    checks_table,
    choose,
    print_outcome,
    print_wrong,
    say,
    table_of,
)
from avow_lab.campaigns.peers.campaign import Options, PeerCampaign
from avow_lab.campaigns.peers.faults import KINDS
from avow_lab.campaigns.peers.file_loss import EVERY
from avow_lab.campaigns.peers.history import Outcome
from avow_lab.campaigns.peers.scripts import every_file
from avow_lab.campaigns.peers.verdict import Verdict

MINUTES: Final = 5.0


def options_of(flags: Flags) -> Options:
    return Options(
        seconds=(flags.minutes or MINUTES) * 60,
        peers=flags.peers,
        seed=flags.seed,
        faults=() if flags.faults == "none" else choose("--faults", flags.faults, KINDS),
        strategy=flags.strategy,
        network=flags.network,
        folder=flags.folder,
        keep=flags.keep,
        plot=flags.plot,
        mutation=flags.mutation,
    )


def headline(options: Options) -> str:
    broken = f", mutation: {options.mutation}" if options.mutation else ""
    return f"{options.peers} peers, {options.seconds / 60:g} min, faults: {', '.join(options.faults) or 'none'}{broken}"


def print_verdict(console: Console, verdict: Verdict) -> None:
    say(console, f"{verdict.duration_s:.0f} s under load, {verdict.peers} peers, network: {verdict.network}")
    console.print(checks_table(verdict.checked, verdict.violations))
    outcomes = [str(outcome) for outcome in Outcome if outcome]
    operations = [
        (kind, *(f"{counts.get(name, 0):,}" for name in outcomes)) for kind, counts in verdict.operations.items()
    ]
    console.print(table_of(["operations"], outcomes, operations))
    lengths_s = dict[str, list[float]]()
    for fault in verdict.faults:
        lengths_s.setdefault(fault.kind, []).append((fault.ended_ns - fault.started_ns) / 1e9)
    faults = [(kind, str(len(found)), f"{max(found):.1f}") for kind, found in sorted(lengths_s.items())]
    console.print(table_of(["fault"], ["times", "longest, s"], faults))
    if verdict.resumed:
        resumed = [(one.what, f"{one.at_s:.1f}", f"{one.after_s:.2f}") for one in verdict.resumed]
        console.print(table_of(["coordinator killed"], ["at, s", "writes resumed after, s"], resumed))
    say(console, *_remarks(verdict))
    print_wrong(console, [f"{one.anomaly}: {one.queue}: {one.what}" for one in verdict.findings[:FINDINGS_SHOWN]])
    print_wrong(console, [f"no client should see this: {trouble}" for trouble in verdict.troubles[:FINDINGS_SHOWN]])
    if verdict.stuck:
        print_wrong(console, [f"not whole again: {verdict.stuck}"])
    done = f"{verdict.acknowledged:,} messages acknowledged through {len(verdict.faults)} faults"
    found = sum(verdict.violations.values())
    print_outcome(console, f"{done}, {found} violations (seed {verdict.seed}).", clean=verdict.clean)


def _remarks(verdict: Verdict) -> list[str]:
    lines = [
        f"{one.queue}: longest time without an acknowledged write {one.gap_s:.2f} s, "
        f"from {one.at_s:.1f} s ({one.during})"
        for one in verdict.gaps
    ]
    for queue, codes in verdict.refusals.items():
        lines.append(f"{queue}: writes refused: {', '.join(f'{code} {count:,}' for code, count in codes.items())}")
    lines += [f"left out: {note}" for note in verdict.notes]
    if verdict.folder:
        lines.append(f"history and verdict: {verdict.folder}{os.sep}")
    if verdict.plot:
        lines.append(f"over time: {verdict.plot}")
    return lines


def damage_options_of(flags: Flags) -> Options:
    """As long as it takes."""
    return msgspec.structs.replace(options_of(flags), seconds=(flags.minutes or 0.0) * 60, faults=("damage",))


def damage_headline(options: Options) -> str:
    return f"{options.peers} peers, {len(EVERY)} ways to lose a file while others are away"


SCENARIO: Final = Scenario(options_of, headline, PeerCampaign, print_verdict)
DAMAGE: Final = Scenario(damage_options_of, damage_headline, partial(PeerCampaign, script=every_file), print_verdict)
