"""Spark's driver and its executors killed with -9 at every step of a batch; then the rows are counted by id.

A run is one kill. It aims at a step (`watching`) of one of the two queries of a bench (`bench`), and the other one is
hit wherever it is. What was hit is looked at when the driver is dead, and may be another step than the one aimed at:
the verdict has both. The driver is then started again from its checkpoints. Every tenth run is on a standalone cluster
with speculation on, where executors outlive the driver for a moment and go on staging.

Two benches run side by side over the same peers. When one fails to run, the other ends with it.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.spark.java import find_java
from avow.testing.cluster import LocalCluster
from avow.testing.prove_spark.aims import Aim, Run, aims, dealt
from avow.testing.prove_spark.bench import EVENTS, Bench
from avow.testing.prove_spark.classes import learn

RUNS: Final = 50
BENCHES: Final = 2
RUNS_SHARED_MIN: Final = 4  # fewer are not worth another driver
RUNS_LEARNED_MIN: Final = 12  # fewer do not pay for it
CLUSTER_EVERY: Final = 10
IDS_SHOWN: Final = 10
TARGETS: Final = ("queue", "table")


class Options(Struct, frozen=True, kw_only=True):
    """`folder` empty: a temporary one, removed after a clean verdict unless `keep`. `cluster_every` 0: never."""

    runs: int = RUNS
    seed: int = 1
    peers: int = 3
    cluster_every: int = CLUSTER_EVERY
    folder: str = ""
    keep: bool = False


class Books(Struct, frozen=True):
    """Of one target: what is not there once."""

    rows: int
    lost: list[str]
    doubled: list[str]
    foreign: list[str]

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.foreign)


class Progress(Struct, frozen=True):
    elapsed_s: float
    run: int
    of: int
    phase: str


class Verdict(Struct):
    seed: int
    duration_s: float
    rows: int
    runs: list[Run]
    books: dict[str, Books]
    batches: dict[str, int]
    speculated: int
    folder: str = ""

    @property
    def clean(self) -> bool:
        return all(books.clean for books in self.books.values())


Tell: TypeAlias = Callable[[Progress], None]


def prove_spark(options: Options, *, tell: Tell = lambda _: None) -> Verdict:
    """Raises AvowError when it cannot even begin, or when a driver ends by itself."""
    find_java()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="avow-prove-spark-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        campaign = Campaign(options, folder, tell, stack)
        verdict = campaign.prove()
    if options.folder or options.keep or not verdict.clean:
        verdict.folder = str(folder)
        (folder / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


class Campaign:
    def __init__(self, options: Options, folder: Path, tell: Tell, stack: ExitStack) -> None:
        self._options, self._tell = options, tell
        self._lock, self._over = threading.Lock(), threading.Event()
        self._begun, self._begun_runs = time.monotonic(), 0
        cluster = stack.enter_context(LocalCluster(options.peers, folder=folder / "peers"))
        learned = learn(cluster, folder=folder / "classes") if options.runs >= RUNS_LEARNED_MIN else {}
        plan = aims(options.runs, seed=options.seed, cluster_every=options.cluster_every)
        self._hands = dealt(plan, BENCHES if options.runs >= RUNS_SHARED_MIN else 1)
        self._benches = [
            Bench(
                number,
                cluster=cluster,
                folder=folder / f"bench-{number}",
                settings=learned,
                seed=options.seed,
                over=self._over,
                stack=stack,
            )
            for number in range(1, len(self._hands) + 1)
        ]

    def prove(self) -> Verdict:
        runs = self._runs()
        rows = set[str]().union(*(bench.rows() for bench in self._benches))
        return Verdict(
            seed=self._options.seed,
            duration_s=time.monotonic() - self._begun,
            rows=len(rows),
            runs=runs,
            books={name: books_of(rows, self._found(name)) for name in TARGETS},
            batches={name: sum(bench.watches[name].done + 1 for bench in self._benches) for name in TARGETS},
            speculated=sum(speculated(bench.folder / EVENTS) for bench in self._benches),
        )

    def _runs(self) -> list[Run]:
        """Raises what the first bench to fail said, not that the others ended with it."""
        with ThreadPoolExecutor(len(self._benches), thread_name_prefix="avow-bench") as pool:
            working = [pool.submit(self._work, *each) for each in zip(self._benches, self._hands, strict=True)]
            try:
                for done in as_completed(working):
                    done.result()
            finally:
                self._over.set()  # also when this thread was interrupted
        return [run for each in working for run in each.result()]

    def _work(self, bench: Bench, hand: list[Aim]) -> list[Run]:
        runs = []
        for aim in hand:
            self._say(aim)
            runs.append(bench.run(aim))
        bench.drain()
        return runs

    def _found(self, target: str) -> Iterable[str]:
        return (row for bench in self._benches for row in bench.found(target))

    def _say(self, aim: Aim) -> None:
        phase = f"{aim.victim} at {aim.target} {aim.step}{' on a cluster' if aim.on_cluster else ''}"
        with self._lock:
            self._begun_runs += 1
            self._tell(Progress(time.monotonic() - self._begun, self._begun_runs, self._options.runs, phase))


def books_of(written: set[str], found: Iterable[str]) -> Books:
    """What was written once and is there once is not in it."""
    counts = Counter(found)
    return Books(
        rows=counts.total(),
        lost=sorted(written - counts.keys())[:IDS_SHOWN],
        doubled=sorted(row for row, times in counts.items() if times > 1)[:IDS_SHOWN],
        foreign=sorted(counts.keys() - written)[:IDS_SHOWN],
    )


def speculated(events: Path) -> int:
    """Attempts that Spark started because another was slow, as its event logs tell."""
    word = '"Event":"SparkListenerTaskStart"'
    return sum(
        word in line and '"Speculative":true' in line
        for path in events.glob("*")
        for line in path.read_text(errors="replace").splitlines()
    )
