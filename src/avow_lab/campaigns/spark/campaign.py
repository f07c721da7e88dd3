"""`avow prove --spark`: kills at every step of a batch; then the rows are counted by id.

A run is one kill. It aims at a step (`watch`) of one of the two queries of a testbed; the other query is hit in
whatever step it is. The step that was hit is read when the driver is dead, and may differ from the one aimed at: the
verdict has both. The driver is then started again from its checkpoints. Every tenth run is on a standalone cluster with
speculation, where executors outlive the driver for a moment and go on staging.

Two testbeds share the peers. When one cannot go on, the other ends with it.

The JVMs of a campaign would spend half of their time on loading Spark's classes. When a program ends, Java can write
the classes that it has loaded, parsed and verified into an archive, and map that archive when the next program starts.
One driver runs some batches and ends by itself; all drivers that are killed later use its archive. Processor time of a
JVM until both queries have planned their first batch: 8.6 s without it, 4.6 s with it. A Java that cannot read the
archive goes on without it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from avow.client.blocking import connect_blocking
from avow.spark.java import find_java
from avow.testing import processes
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_wait import wait_until
from avow_lab.campaigns.harness import campaign
from avow_lab.campaigns.harness.spark_driver import JAVA_OPTIONS, QUICK, SparkDriver
from avow_lab.campaigns.spark.driver import BATCH_ROWS, DRIVER, SINK, SOURCE
from avow_lab.campaigns.spark.plan import Kill, Run, draw_kills, split
from avow_lab.campaigns.spark.testbed import EVENTS, Testbed

# ---------------------------------------------------------------------- the class archive

BATCHES: Final = 2
ARCHIVED_S: Final = 600.0
ARCHIVE: Final = "classes.jsa"


def make_archive(cluster: LocalCluster, *, folder: Path) -> dict[str, str]:
    """Returns the settings of drivers that use the archive; empty when Java wrote none."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / ARCHIVE
    with connect_blocking(cluster.addresses) as client:
        client.create_queue(SOURCE)
        client.create_queue(SINK)
        client.queue(SOURCE).enqueue_many([b"%d" % number for number in range(BATCHES * BATCH_ROWS)])
    settings = msgspec.json.encode({JAVA_OPTIONS: f"{QUICK} -XX:ArchiveClassesAtExit={archive}"}).decode()
    with SparkDriver("driver", ["-m", DRIVER], folder=folder) as program:
        flags = ["--servers", cluster.addresses, "--folder", str(folder), "--batches", str(BATCHES)]
        program.launch(*flags, "--settings", settings)
        _wait_ended(program)
    return {JAVA_OPTIONS: f"{QUICK} -XX:SharedArchiveFile={archive}"} if archive.exists() else {}


def _wait_ended(program: SparkDriver) -> None:
    """Waits for its JVM too, which writes the archive after Python has ended."""
    below = list[int]()

    def ended() -> bool:
        if program.alive:
            below[:] = processes.descendants(program.pid) or below
            return False
        return not any(os.path.exists(f"/proc/{pid}") for pid in below)

    try:
        wait_until(ended, timeout_s=ARCHIVED_S, what=program.log_tail)
    finally:
        processes.kill(*below)


# ---------------------------------------------------------------------- the campaign

RUNS: Final = 50
TESTBEDS: Final = 2
RUNS_SPLIT_MIN: Final = 4  # fewer are not worth another driver
RUNS_ARCHIVE_MIN: Final = 12  # fewer are not worth a class archive
CLUSTER_EVERY: Final = 10
IDS_SHOWN: Final = 10
TARGETS: Final = ("queue", "table")


class Options(campaign.Options, frozen=True, kw_only=True):
    """`cluster_every` 0: never on a cluster."""

    runs: int = RUNS
    peers: int = 3
    cluster_every: int = CLUSTER_EVERY


class RowCounts(Struct, frozen=True):
    """Of one target. The lists name the rows that are not there exactly once."""

    rows: int
    lost: list[str]
    doubled: list[str]
    foreign: list[str]

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.foreign)


class Progress(Struct, frozen=True):
    elapsed_s: float
    phase: str
    run: int
    of: int

    def line(self) -> str:
        return f"{self.elapsed_s:6.1f} s  kill {self.run} of {self.of}: {self.phase}"


class Verdict(Struct):
    seed: int
    duration_s: float
    rows: int
    runs: list[Run]
    counts: dict[str, RowCounts]
    batches: dict[str, int]
    speculated: int
    folder: str = ""

    @property
    def clean(self) -> bool:
        return all(target.clean for target in self.counts.values())


class SparkCampaign:
    def __init__(self, options: Options, folder: Path) -> None:
        find_java()
        self._options, self._folder, self._stack = options, folder, ExitStack()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._began, self._phase, self._begun_runs = time.monotonic(), "starting peers", 0
        kills = draw_kills(options.runs, seed=options.seed, cluster_every=options.cluster_every)
        self._lists = split(kills, TESTBEDS if options.runs >= RUNS_SPLIT_MIN else 1)
        self._testbeds = list[Testbed]()
        self._runs = list[Run]()

    def close(self) -> None:
        self._stack.close()

    def progress(self) -> Progress:
        return Progress(time.monotonic() - self._began, self._phase, self._begun_runs, self._options.runs)

    def start(self) -> None:
        options, folder = self._options, self._folder
        cluster = self._stack.enter_context(LocalCluster(options.peers, folder=folder / "peers"))
        archived = make_archive(cluster, folder=folder / "classes") if options.runs >= RUNS_ARCHIVE_MIN else {}
        self._testbeds = [
            Testbed(
                number,
                cluster=cluster,
                folder=folder / f"testbed-{number}",
                settings=archived,
                seed=options.seed,
                over=self._over,
                stack=self._stack,
            )
            for number in range(1, len(self._lists) + 1)
        ]

    def inject_faults(self) -> None:
        """Raises the error of the first testbed that fails, and not that the other one ended with it."""
        with ThreadPoolExecutor(len(self._testbeds), thread_name_prefix="avow-testbed") as pool:
            working = [pool.submit(self._work, *each) for each in zip(self._testbeds, self._lists, strict=True)]
            try:
                for done in as_completed(working):
                    done.result()
            finally:
                self._over.set()  # also when this thread was interrupted
        self._runs = [run for each in working for run in each.result()]

    def _work(self, testbed: Testbed, kills: list[Kill]) -> list[Run]:
        runs = []
        for kill in kills:
            with self._lock:
                self._begun_runs += 1
                cluster = " on a cluster" if kill.on_cluster else ""
                self._phase = f"{kill.victim} at {kill.target} {kill.step}{cluster}"
            runs.append(testbed.run(kill))
        testbed.drain()
        return runs

    def judge(self) -> Verdict:
        rows = set[str]().union(*(testbed.rows() for testbed in self._testbeds))
        return Verdict(
            seed=self._options.seed,
            duration_s=time.monotonic() - self._began,
            rows=len(rows),
            runs=self._runs,
            counts={name: count_rows(rows, self._found(name)) for name in TARGETS},
            batches={name: sum(testbed.watches[name].done + 1 for testbed in self._testbeds) for name in TARGETS},
            speculated=sum(speculated(testbed.folder / EVENTS) for testbed in self._testbeds),
        )

    def _found(self, target: str) -> Iterable[str]:
        return (row for testbed in self._testbeds for row in testbed.found(target))


def count_rows(written: set[str], found: Iterable[str]) -> RowCounts:
    counts = Counter(found)
    return RowCounts(
        rows=counts.total(),
        lost=sorted(written - counts.keys())[:IDS_SHOWN],
        doubled=sorted(row for row, times in counts.items() if times > 1)[:IDS_SHOWN],
        foreign=sorted(counts.keys() - written)[:IDS_SHOWN],
    )


def speculated(events: Path) -> int:
    """The number of speculative attempts in Spark's event logs."""
    word = '"Event":"SparkListenerTaskStart"'
    return sum(
        word in line and '"Speculative":true' in line
        for path in events.glob("*")
        for line in path.read_text(errors="replace").splitlines()
    )
