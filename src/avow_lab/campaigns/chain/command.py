"""`avow prove --chain`: options, and what is printed of the verdict."""

from __future__ import annotations

import os
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from avow_lab.campaigns.chain.campaign import FAULTS, ChainCampaign, Options, Verdict
from avow_lab.campaigns.chain.chain import DATABASES
from avow_lab.campaigns.chain.planted_errors import PLANTS
from avow_lab.campaigns.harness.reporting import (
    Flags,
    Scenario,
    checks_table,
    choose_one,
    print_outcome,
    print_wrong,
    say,
    table_of,
)

KINDS: Final = ("lost", "doubled", "orphaned", "undecided")


def options_of(flags: Flags) -> Options:
    return Options(
        faults=fault_count(flags.faults),
        seconds=60 * (flags.minutes or 0.0),
        seed=flags.seed,
        peers=flags.peers,
        database="postgres" if flags.database == "all" else choose_one("--database", flags.database, DATABASES),
        plant=choose_one("--plant", flags.plant, PLANTS) if flags.plant else None,
        folder=flags.folder,
        keep=flags.keep,
    )


def fault_count(text: str) -> int:
    if text == "all":
        return FAULTS
    if not text.isdigit():
        raise typer.BadParameter(f"with --chain, --faults is how many there are, not {text!r}")
    return int(text)


def headline(options: Options) -> str:
    bound = f" within {options.seconds / 60:g} min" if options.seconds else ""
    planted = f"; planted: {options.plant}" if options.plant else ""
    return (
        f"{options.faults} faults{bound}; {options.peers} peers, a shop on {options.database}, "
        f"Spark on {options.master}{planted}"
    )


def print_verdict(console: Console, verdict: Verdict) -> None:
    report = verdict.report
    stages = [(one.stage, Text(one.what), f"{one.rows:,}", f"{one.ids:,}") for one in report.stages]
    console.print(table_of(["stage", "what"], ["rows", "ids"], stages))
    checked = dict.fromkeys(KINDS, max(one.ids for one in report.stages))
    checked["misreported"] = verdict.told_committed + verdict.told_rolled_back
    found = {str(finding.kind): report.count(finding.kind) for finding in report.findings}
    console.print(checks_table(checked, {**found, "misreported": len(verdict.misreported)}))
    killed = ", ".join(f"{victim} {count}" for victim, count in sorted(verdict.faults.items())) or "nobody"
    say(
        console,
        f"killed with -9: {killed}",
        f"customers were told: committed {verdict.told_committed:,}, rolled back {verdict.told_rolled_back:,}; "
        f"{verdict.repeated:,} requests had to be repeated",
    )
    if verdict.folder:
        say(console, f"logs, report and verdict: {verdict.folder}{os.sep}")
    for finding in report.findings:
        more = f" and {finding.count - len(finding.ids):,} more" if finding.count > len(finding.ids) else ""
        print_wrong(console, [f"{finding.kind}: {finding.what}: {', '.join(finding.ids)}{more}"])
    print_wrong(console, [f"misreported: {wrong}" for wrong in verdict.misreported])
    if verdict.stuck:
        print_wrong(console, [f"not everything was delivered: {verdict.stuck}"])
    _print_outcome(console, verdict)


def _print_outcome(console: Console, verdict: Verdict) -> None:
    done = f"{sum(verdict.faults.values())} faults in {verdict.duration_s:.0f} s (seed {verdict.seed})"
    if verdict.planted is not None:
        error = f"{verdict.planted.kind} {verdict.planted.id}"
        found, missed = (
            f"The audit names {error}, and nothing else",
            f"{error} was planted, and this is not exactly what the audit says",
        )
        text = f"{found if verdict.clean else missed}; {done}."
        print_outcome(console, text, clean=verdict.clean, held="Planted error found.")
        return
    equal = " =" if verdict.clean else ","
    counts = f"{verdict.committed:,} orders committed{equal} {verdict.messages:,} messages{equal} {verdict.rows:,} rows"
    print_outcome(console, f"{counts}; {done}{', 0 violations' if verdict.clean else ''}.", clean=verdict.clean)


SCENARIO: Final = Scenario(options_of, headline, ChainCampaign, print_verdict)
