"""`avow prove --pledges`: options, and what is printed of the verdict."""

from __future__ import annotations

import os
from typing import Final

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
from avow_lab.campaigns.pledges.campaign import Options, PledgeCampaign, Verdict
from avow_lab.campaigns.pledges.runs import DATABASES, POINTS, RUNS, STORES, VICTIMS


def options_of(flags: Flags) -> Options:
    return Options(
        runs=flags.runs or RUNS,
        seed=flags.seed,
        stores=choose("--store", flags.store, STORES),
        databases=choose("--database", flags.database, DATABASES),
        folder=flags.folder,
        keep=flags.keep,
    )


def headline(options: Options) -> str:
    return f"{options.runs:,} runs; stores: {', '.join(options.stores)}; databases: {', '.join(options.databases)}"


def print_verdict(console: Console, verdict: Verdict) -> None:
    counted = ("runs", "killed", "pledges", "committed")
    cells = [(one.store, one.database, one.runs, one.kills, one.pledges, one.committed) for one in verdict.cells]
    rows = [(store, database, *(f"{count:,}" for count in counts)) for store, database, *counts in cells]
    console.print(table_of(["store", "database"], counted, rows))
    console.print(checks_table(verdict.checked, verdict.violations))
    points = ", ".join(f"{point} {count:,}" for point, count in sorted(verdict.points.items()))
    answers = ", ".join(f"{answer or 'nothing'} {count:,}" for answer, count in verdict.told.items())
    possible = len(verdict.cells) * len(POINTS) * len(VICTIMS)
    say(
        console,
        f"runs by the step at which a process was killed: {points}",
        f"combinations of store, database, step and victim: {verdict.combinations:,} of {possible:,}",
        f"callers were told: {answers}",
    )
    if verdict.not_reached:
        say(console, f"ended before the step was reached: {verdict.not_reached:,} runs")
    if verdict.folder:
        say(console, f"logs and verdict: {verdict.folder}{os.sep}")
    print_wrong(console, [f"{one.anomaly}: {one.gid}: {one.what}" for one in verdict.findings[:FINDINGS_SHOWN]])
    if verdict.stuck:
        print_wrong(console, [f"could not go on: {verdict.stuck}"])
    done = (
        f"{verdict.runs:,} runs in {verdict.duration_s:.0f} s, services killed {verdict.kills['service']:,} times and "
        f"coordinators {verdict.kills['coordinator']:,} times; {verdict.pledges:,} pledges, "
        f"{verdict.committed:,} committed"
    )
    found = sum(verdict.violations.values())
    print_outcome(console, f"{done}, {found} violations (seed {verdict.seed}).", clean=verdict.clean)


SCENARIO: Final = Scenario(options_of, headline, PledgeCampaign, print_verdict)
