"""`avow prove --spark`: options, and what is printed of the verdict."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

from rich.console import Console

from avow_lab.campaigns.harness.reporting import (
    Flags,
    Scenario,
    found_count,
    print_outcome,
    print_wrong,
    say,
    table_of,
)
from avow_lab.campaigns.spark.campaign import RUNS, Options, SparkCampaign, Verdict
from avow_lab.campaigns.spark.watch import STEPS

KINDS: Final = ("lost", "doubled", "foreign")


def options_of(flags: Flags) -> Options:
    return Options(runs=flags.runs or RUNS, seed=flags.seed, peers=flags.peers, folder=flags.folder, keep=flags.keep)


def headline(options: Options) -> str:
    return f"{options.runs} kills; {options.peers} peers"


def print_verdict(console: Console, verdict: Verdict) -> None:
    hits = [Counter(run.hit.get(name, "idle") for run in verdict.runs) for name in verdict.counts]
    steps = [(step, *(str(counts[step]) for counts in hits)) for step in STEPS]
    console.print(table_of(["hit while"], [f"to a {name}" for name in verdict.counts], steps))
    wrong = {name: {kind: getattr(counts, kind) for kind in KINDS} for name, counts in verdict.counts.items()}
    targets = [
        (name, f"{counts.rows:,}", *(found_count(len(ids)) for ids in wrong[name].values()))
        for name, counts in verdict.counts.items()
    ]
    console.print(table_of(["target"], ["rows", *KINDS], targets))
    workers = sum(run.kill.victim == "worker" for run in verdict.runs)
    on_cluster = sum(run.kill.on_cluster for run in verdict.runs)
    say(
        console,
        f"killed with -9: driver {len(verdict.runs) - workers}, worker or executor {workers}",
        f"on a cluster: {on_cluster} of them; {verdict.speculated} attempts were speculative there",
        f"batches: {', '.join(f'{name} {count:,}' for name, count in verdict.batches.items())}",
    )
    if verdict.folder:
        say(console, f"logs, checkpoints and verdict: {verdict.folder}{os.sep}")
    for name, found in wrong.items():
        print_wrong(console, [f"{kind} in the {name}: {', '.join(ids)}" for kind, ids in found.items() if ids])
    done = (
        f"{verdict.rows:,} rows through {len(verdict.runs)} kills in {verdict.duration_s:.0f} s (seed {verdict.seed})"
    )
    print_outcome(console, f"{done}: each of them once, in both." if verdict.clean else f"{done}.", clean=verdict.clean)


SCENARIO: Final = Scenario(options_of, headline, SparkCampaign, print_verdict)
