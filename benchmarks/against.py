"""The same work on Avow and on NATS JetStream, RabbitMQ and Redis Streams, round by round in one run.

Figures of a machine that others use too drift by tens of percent within minutes. So the systems take turns: in every
round each work is done by each system, one after the other (every second round in the opposite order), and what is
claimed is the ratio within a round. All clusters (three nodes each, on loopback, same disk) run from the start to the
end; dirty pages are written out before each turn, so that nobody pays for what the one before left behind. Every turn
writes to a fresh queue.

    python -m benchmarks against                         all works, all systems; writes docs/benchmarks.md and .png
    python -m benchmarks against --only one,single --rivals nats-sync --rounds 3 --seconds 1
    python -m benchmarks against --backlog 50M           the long form of the backlog figure
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import platform
import shlex
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from rich.console import Console

from avow.errors import AvowError
from benchmarks.rivals.avow import AvowSystem
from benchmarks.rivals.avow_alone import Alone, measure_alone
from benchmarks.rivals.nats import NatsSystem
from benchmarks.rivals.plot import draw
from benchmarks.rivals.rabbitmq import RabbitSystem
from benchmarks.rivals.redis import RedisSystem
from benchmarks.rivals.report import Contender, Machine, Report, print_report, write_document
from benchmarks.rivals.system import System
from benchmarks.rivals.targets import judge
from benchmarks.rivals.work import WORKS, Figures, Missing, Sample, Work

FOLDER: Final = Path(".bench")
DOCUMENT: Final = Path("docs/benchmarks.md")
PICTURE: Final = Path("docs/benchmarks.png")
RIVALS: Final = ("nats-sync", "nats-default", "rabbitmq", "redis")
ALONE: Final = "alone"
WARMUP_S: Final = 0.4
ROUNDS_DOCUMENTED: Final = 3
_PARTS: Final = (*(work.name for work in WORKS), ALONE)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int = 5
    seconds: float = 2.0
    only: tuple[str, ...] = _PARTS
    rivals: tuple[str, ...] = RIVALS
    backlog: int = 2_000_000
    install: bool = True
    documented: bool = True

    @property
    def works(self) -> list[Work]:
        return [work for work in WORKS if work.name in self.only]

    @property
    def whole(self) -> bool:
        """Whether this run may replace the figures in docs/."""
        return self.only == _PARTS and self.rivals == RIVALS and self.rounds >= ROUNDS_DOCUMENTED


def read_options(words: list[str]) -> Options:
    usual = Options()
    parser = argparse.ArgumentParser(prog="python -m benchmarks against", description="Avow beside other systems.")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="turns of each system for each work")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="measured in each turn")
    parser.add_argument("--only", type=chosen(_PARTS), default=_PARTS, help=f"some of {','.join(_PARTS)}")
    parser.add_argument("--rivals", type=chosen(RIVALS), default=RIVALS, help=f"some of {','.join(RIVALS)}, or none")
    parser.add_argument("--backlog", type=read_count, default=usual.backlog, help="messages, such as 2M or 50M")
    parser.add_argument("--no-install", dest="install", action="store_false", help="install no Debian package")
    parser.add_argument("--no-docs", dest="documented", action="store_false", help="leave docs/ as it is")
    options = msgspec.convert(vars(parser.parse_args(words)), Options)
    if options.rounds < 1 or options.seconds <= 0 or options.backlog < 1:
        parser.error("--rounds, --seconds and --backlog are above zero")
    return options


class chosen:
    """Words of a list, in the list's order. A class, for argparse names it when it refuses."""

    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known

    def __call__(self, text: str) -> tuple[str, ...]:
        words = [word for word in text.split(",") if word and word != "none"]
        if unknown := [word for word in words if word not in self._known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(self._known)}")
        return tuple(word for word in self._known if word in words)


def read_count(text: str) -> int:
    """50M, 200k, 1234."""
    unit = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    return int(float(text[:-1] if unit > 1 else text) * unit)


class Run:
    """One run: the systems that could be started, and what their turns gave."""

    def __init__(self, options: Options, console: Console, folder: Path) -> None:
        self.options, self.console, self.folder = options, console, folder
        self.systems: list[System] = []
        self.missing: dict[str, str] = {}
        self.samples: dict[str, dict[str, dict[int, Sample]]] = defaultdict(lambda: defaultdict(dict))
        self.alone: Alone | None = None

    def start(self, stack: contextlib.ExitStack) -> None:
        for system in self._contenders():
            stack.callback(system.stop)
            self.console.print(f"starting {system.name} ...")
            try:
                system.start()
            except (Missing, AvowError, OSError) as reason:
                self._left_out(system.name, reason)
            else:
                self.systems.append(system)

    def take_turns(self) -> None:
        for number in range(self.options.rounds):
            order = self.systems if number % 2 == 0 else self.systems[::-1]  # a drift favours nobody
            for work in self.options.works:
                for system in order:
                    self._turn(number, work, system)

    def measure_alone(self) -> None:
        system = next((each for each in self.systems if isinstance(each, AvowSystem)), None)
        if ALONE not in self.options.only or system is None:
            return
        options = self.options
        try:
            self.alone = measure_alone(
                system,
                backlog=options.backlog,
                rounds=options.rounds,
                seconds=options.seconds,
                warmup_s=WARMUP_S,
                say=lambda text: self.console.print(f"alone: {text}"),
            )
        except (Missing, AvowError, OSError) as reason:
            self._left_out("Avow alone", reason)

    def report(self, command: str, load_before: float) -> Report:
        samples = {work: {name: dict(rounds) for name, rounds in by.items()} for work, by in self.samples.items()}
        alone = self.alone
        return Report(
            command=command,
            date=dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d"),
            rounds=self.options.rounds,
            seconds=self.options.seconds,
            machine=describe_machine(load_before),
            contenders=[_describe(system) for system in self.systems],
            missing=self.missing,
            samples=samples,
            figures={
                work: {each.name: Figures.of(list(by[each.name].values())) for each in self.systems if each.name in by}
                for work, by in samples.items()
            },
            alone=alone,
            targets=judge(
                samples,
                reading=alone.read_per_core_s if alone else None,
                backlog=alone.ratio if alone else None,
                backlog_messages=alone.backlog_messages if alone else self.options.backlog,
            ),
        )

    def _contenders(self) -> Iterator[System]:
        install = self.options.install
        yield AvowSystem(self.folder / "avow")
        if "nats-sync" in self.options.rivals:
            yield NatsSystem(self.folder / "nats-sync", sync=True)
        if "nats-default" in self.options.rivals:
            yield NatsSystem(self.folder / "nats-default", sync=False)
        if "rabbitmq" in self.options.rivals:
            yield RabbitSystem(self.folder / "rabbitmq", install=install)
        if "redis" in self.options.rivals:
            yield RedisSystem(self.folder / "redis", install=install)

    def _turn(self, number: int, work: Work, system: System) -> None:
        os.sync()
        try:
            sample = system.run(work, seconds=self.options.seconds, warmup_s=WARMUP_S)
        except (Missing, AvowError, OSError) as reason:
            self._left_out(f"{system.name}, {work.title}, round {number + 1}", reason)
            return
        self.samples[work.name][system.name][number] = sample
        self.console.print(
            f"round {number + 1}  {work.name:<12}{system.name:<14}{sample.per_s:>12,.0f}/s  "
            f"p50 {sample.p50_us / 1e3:>8.2f} ms  server {sample.server_cpu_us:>8.1f} µs/message",
            highlight=False,
        )

    def _left_out(self, name: str, reason: Exception) -> None:
        text = str(reason).replace(f"{self.folder}/", "")
        self.missing[name] = text
        self.console.print(f"not measured: {name}: {text}", markup=False)


def _describe(system: System) -> Contender:
    return Contender(
        name=system.name,
        version=system.version,
        durability=system.durability,
        client=system.client,
        notes=system.notes,
    )


def describe_machine(load_before: float) -> Machine:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        processor=processor,
        cores=os.cpu_count() or 1,
        memory_gib=round(memory / (1 << 30)),
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        load_before=load_before,
        load_after=os.getloadavg()[0],
    )


def end_on_signal(_number: int, _frame: object) -> NoReturn:
    sys.exit(143)


def measure(options: Options, console: Console, command: str) -> Report:
    """Start everything, take turns, end everything, whatever happens."""
    load_before = os.getloadavg()[0]
    folder = (FOLDER / f"against-{os.getpid()}").absolute()
    folder.mkdir(parents=True)
    signal.signal(signal.SIGTERM, end_on_signal)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        run = Run(options, console, folder)
        run.start(stack)
        run.take_turns()
        run.measure_alone()
        return run.report(command, load_before)


def main(words: list[str]) -> int:
    options = read_options(words)
    console = Console(width=None if sys.stdout.isatty() else 140)
    command = shlex.join(["python", "-m", "benchmarks", "against", *words])
    report = measure(options, console, command)
    (FOLDER / "against.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    print_report(report, console)
    console.print(
        f"{report.reached} of {len(report.targets)} targets reached; all figures are in {FOLDER}/against.json"
    )
    if options.documented and options.whole:
        write_document(report, DOCUMENT)
        draw(report, PICTURE)
        console.print(f"written: {DOCUMENT}, {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
