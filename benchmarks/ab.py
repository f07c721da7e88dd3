"""Two builds of Avow side by side: the one of a commit and the working tree, interleaved in one run.

    python -m benchmarks ab --before dcd3e62                 15 rounds of four loads, about 9 minutes
    python -m benchmarks ab --before HEAD --json ab.json     what uncommitted changes cost
    python -m benchmarks ab --before HEAD --quick            whether it runs at all; the figures mean nothing

Three arms take turns: `before`, `after`, and `again`, which is `before` once more and shows what noise alone does. An
arm is three peers on loopback with a two-phase queue of one lane, every acknowledged message synced by a quorum, and a
client process. Peers and client run the code of the arm's build, on the same interpreter and libraries. Each turn
writes to a fresh queue. `ab_statistics` says how the ratios are judged.

Every round starts all peers anew. Two starts of the same build may differ for as long as they live (hash seeds, memory
layout, which peer coordinates). Peers that served the whole run would show that difference in all rounds alike, as if
it came from the build; fresh ones make it noise, which the intervals contain. Within a round the peers of all arms stay
up, so that turns of the same load follow each other within seconds. The heartbeats of an idle arm take about 4 % of a
core and are not counted: processor time is that of the loaded arm's own processes.

The exit code is 1 when a median is worse than the A/A interval or the server CPU per message is more than 5 % above
that of `before`, 2 when nothing could be measured. Use it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import os
import random
import shlex
import shutil
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from avow.errors import AvowError
from benchmarks import builds
from benchmarks.ab_statistics import (
    AFTER,
    ARMS,
    BEFORE,
    CONFIDENCE,
    FIGURES,
    ROUNDS_MIN,
    SERVER_CPU_LIMIT,
    Comparison,
    Interval,
    compare,
)
from benchmarks.against import FOLDER, chosen, describe_machine, end_on_signal
from benchmarks.builds import Build, BuildError
from benchmarks.rivals.avow import AvowSystem
from benchmarks.rivals.report import Machine, figure
from benchmarks.rivals.work import WORKS, Missing, Sample, Work

LOADS: Final = ("one", "single", "batch1000", "batch100")
SECONDS: Final = 1.5
WARMUP_S: Final = 0.3
TABLE_WIDTH: Final = 126
QUICK_ROUNDS: Final = 2
QUICK_SECONDS: Final = 0.3
_QUICK: Final = "--quick: the intervals and verdicts of this run mean nothing"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    before: str
    rounds: int
    seconds: float
    only: tuple[str, ...]
    seed: int
    json: Path | None
    quick: bool

    @property
    def loads(self) -> list[Work]:
        known = {work.name: work for work in WORKS}
        return [known[name] for name in self.only]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    date: str
    before: Build
    after: Build
    seed: int
    quick: bool
    rounds: int
    seconds: float
    machine: Machine
    interval: str
    comparisons: list[Comparison]
    left_out: list[str]
    samples: dict[str, dict[int, dict[str, Sample]]]  # by load, round, arm

    @property
    def failed(self) -> bool:
        return not self.quick and any(each.failed for each in self.comparisons)


def read_options(words: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ab", description="Two builds of Avow side by side.")
    parser.add_argument("--before", required=True, metavar="COMMIT", help="the build to compare the working tree with")
    parser.add_argument("--rounds", type=int, help=f"turns of each arm for each load; at least {ROUNDS_MIN}")
    parser.add_argument("--seconds", type=float, help=f"measured in each turn ({SECONDS:g})")
    parser.add_argument("--only", type=chosen(LOADS), default=LOADS, help=f"some of {','.join(LOADS)}")
    parser.add_argument("--seed", type=int, help="of the order of turns; printed, random unless given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn and every verdict to this file")
    parser.add_argument("--quick", action="store_true", help="a few short rounds, to see that it runs")
    found = parser.parse_args(words)
    rounds = found.rounds if found.rounds is not None else (QUICK_ROUNDS if found.quick else ROUNDS_MIN)
    seconds = found.seconds if found.seconds is not None else (QUICK_SECONDS if found.quick else SECONDS)
    if rounds < (1 if found.quick else ROUNDS_MIN):
        parser.error(
            f"--rounds is at least {ROUNDS_MIN}: fewer give no interval. --quick takes fewer and judges nothing"
        )
    if seconds <= 0 or not found.only:
        parser.error("--seconds is above zero and --only names a load")
    return Options(
        before=found.before,
        rounds=rounds,
        seconds=seconds,
        only=found.only,
        seed=found.seed if found.seed is not None else random.SystemRandom().randrange(1_000_000),
        json=found.json,
        quick=found.quick,
    )


def order_arms(rounds: int, rng: random.Random) -> list[tuple[str, ...]]:
    """Who goes first in which round: the six orders in turn, each six of them shuffled, so that none is favoured."""
    orders: list[tuple[str, ...]] = []
    while len(orders) < rounds:
        block = list(itertools.permutations(ARMS))
        rng.shuffle(block)
        orders += block
    return orders[:rounds]


class Run:
    """`sources` has the `src` folder of each arm."""

    def __init__(self, options: Options, sources: dict[str, Path], folder: Path, progress: Progress) -> None:
        self.options, self.sources, self.folder = options, sources, folder
        self.samples: dict[str, dict[int, dict[str, Sample]]] = defaultdict(lambda: defaultdict(dict))
        self.left_out: list[str] = []
        rng = random.Random(options.seed)
        self._orders = {work.name: order_arms(options.rounds, rng) for work in options.loads}
        self._starts = order_arms(options.rounds, rng)
        self._progress = progress
        self._bar = progress.add_task("", total=options.rounds * len(options.loads) * len(ARMS))
        self._began = time.monotonic()

    def take_rounds(self) -> None:
        for number in range(self.options.rounds):
            with contextlib.ExitStack() as stack:
                self._round(number, stack)
            self._tell_round(number)

    def _round(self, number: int, stack: contextlib.ExitStack) -> None:
        """Raises AvowError when peers do not start."""
        folder = self.folder / f"round-{number}"
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        systems: dict[str, AvowSystem] = {}
        self._progress.update(self._bar, description=f"round {number + 1} of {self.options.rounds}")
        for arm in self._starts[number]:
            systems[arm] = AvowSystem(folder / arm, source=self.sources[arm])
            stack.callback(systems[arm].stop)
            systems[arm].start()
        for work in self.options.loads:
            for arm in self._orders[work.name][number]:
                self._turn(number, work, arm, systems[arm])

    def _turn(self, number: int, work: Work, arm: str, system: AvowSystem) -> None:
        os.sync()  # nobody pays for what the turn before left behind
        try:
            sample = system.run(work, seconds=self.options.seconds, warmup_s=WARMUP_S)
        except (Missing, AvowError, OSError) as reason:
            self.left_out.append(f"round {number + 1}, {work.name}, {arm}: {reason}".replace(f"{self.folder}/", ""))
        else:
            self.samples[work.name][number][arm] = sample
        self._progress.advance(self._bar)

    def _tell_round(self, number: int) -> None:
        """A terminal has the bar."""
        done, spent = number + 1, time.monotonic() - self._began
        if not self._progress.console.is_terminal:
            left = spent / done * (self.options.rounds - done)
            print(f"round {done} of {self.options.rounds}, {spent:.0f} s, about {left:.0f} s left", flush=True)


def measure(options: Options, command: str, console: Console) -> Report:
    """Raises BuildError, and AvowError or OSError when the peers of a build do not start."""
    before, after = builds.describe_commit(options.before), builds.describe_tree()
    console.print(f"{before}\n{after}\nseed {options.seed}, {options.rounds} rounds", highlight=False, markup=False)
    load_before = os.getloadavg()[0]
    folder = (FOLDER / f"ab-{os.getpid()}").absolute()
    folder.mkdir(parents=True)
    signal.signal(signal.SIGTERM, end_on_signal)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        sources = {BEFORE: builds.unpack_commit(before, folder / BEFORE), AFTER: builds.copy_tree(folder / AFTER)}
        for source in sources.values():
            builds.prepare_source(source)
        progress = stack.enter_context(_progress(console))
        run = Run(options, {arm: sources.get(arm, sources[BEFORE]) for arm in ARMS}, folder, progress)
        run.take_rounds()
    return _report(run, before, after, command=command, load_before=load_before)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("turns,"),
        TimeElapsedColumn(),
        TextColumn("spent,"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _report(run: Run, before: Build, after: Build, *, command: str, load_before: float) -> Report:
    options = run.options
    needed = 1 if options.quick else ROUNDS_MIN
    try:
        comparisons = [
            compare(load, name, run.samples[load], rounds_min=needed) for load in options.only for name in FIGURES
        ]
    except ValueError as error:
        raise Missing(f"{error}; {'; '.join(run.left_out)}") from error
    return Report(
        command=command,
        date=dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d"),
        before=before,
        after=after,
        seed=options.seed,
        quick=options.quick,
        rounds=options.rounds,
        seconds=options.seconds,
        machine=describe_machine(load_before),
        interval=f"order statistics of the median, at least {CONFIDENCE:.0%} where there are enough rounds",
        comparisons=comparisons,
        left_out=run.left_out,
        samples={load: {number: dict(arms) for number, arms in by.items()} for load, by in run.samples.items()},
    )


def print_report(report: Report, console: Console) -> None:
    table = Table(title="after : before, medians of ratios within rounds; less is better", title_justify="left")
    for name in ("load", "figure", "before", "after", "after : before", "A/A", "verdict"):
        table.add_column(name, justify="right" if name in ("before", "after") else "left", no_wrap=True)
    for each in report.comparisons:
        table.add_row(
            each.load,
            each.figure,
            figure(each.before),
            figure(each.after),
            _ratio(each.ratio),
            _ratio(each.noise),
            "-" if report.quick else verdict(each),
            end_section=each.figure == FIGURES[-1],
        )
    console.print(table)
    for text in report.left_out:
        console.print(f"left out: {text}", markup=False)
    coverage = min(min(each.ratio.coverage, each.noise.coverage) for each in report.comparisons)
    machine = report.machine
    console.print(
        f"{report.rounds} rounds of {report.seconds:g} s. Intervals: order statistics of the median, {coverage:.1%}. "
        f"A/A is before : before. Load average {machine.load_before:.1f}, at the end {machine.load_after:.1f}.",
        highlight=False,
    )
    console.print(_conclusion(report), markup=False)


def verdict(each: Comparison) -> str:
    limit = f", above {SERVER_CPU_LIMIT:.2f}" if each.above_limit else ""
    return f"{each.judgement}{limit}"


def _conclusion(report: Report) -> str:
    if report.quick:
        return _QUICK
    failed = [f"{each.load} {each.figure} ({verdict(each)})" for each in report.comparisons if each.failed]
    return f"NOT passed: {', '.join(failed)}" if failed else "passed: nothing is worse than noise explains"


def _ratio(of: Interval) -> str:
    return f"{of.median:.3f} ({of.low:.3f} to {of.high:.3f})"


def main(words: list[str]) -> int:
    options = read_options(words)
    console = Console(width=None if sys.stdout.isatty() else 140)
    command = shlex.join(["python", "-m", "benchmarks", "ab", *words])
    if options.quick:
        console.print(_QUICK, markup=False)
    try:
        report = measure(options, command, console)
    except (BuildError, Missing, AvowError, OSError) as error:
        print(f"ab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ab: interrupted; nothing was judged", file=sys.stderr)
        return 130
    print_report(report, Console(width=max(console.width, TABLE_WIDTH)))  # a narrow terminal shall not cut figures off
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        console.print(f"every turn is in {options.json}", markup=False)
    return 1 if report.failed else 0
