"""Spark's driver and its executors killed with -9 at every step of a batch; then the rows are counted by id.

    queue `lines` ──► driver ──┬──► queue `copies`      staged and published
                               └──► Delta table         files and one entry of the log

A run is one kill. It aims at a step (`watching`) of one of the two queries, and the other one is hit wherever it is.
What was hit is looked at when the driver is dead, and may be another step than the one aimed at: the verdict has both.
The driver is then started again from its checkpoints. Every tenth run is on a standalone cluster with speculation on,
where executors outlive the driver for a moment and go on staging.

Victims: `driver` (Python, JVM, and all that they started), or `worker`: one process that Spark runs Python in, on a
cluster a whole executor.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from avow.client.blocking import BlockingClient, connect_blocking
from avow.errors import Offline
from avow.spark.java import find_java
from avow.spark.tables import open_table
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_wait import wait_until
from avow.testing.programs import Program
from avow.testing.prove_chain import processes
from avow.testing.prove_spark.driver import BATCH_ROWS, SINK, SOURCE, TABLE
from avow.testing.prove_spark.watching import DeltaTarget, QueueTarget, Step, Watch
from avow.testing.spark_cluster import SparkCluster

RUNS: Final = 50
DRIVER: Final = "avow.testing.prove_spark.driver"
LANES: Final = 2
CLUSTER_EVERY: Final = 10
STARTED_S: Final = 300.0  # until a driver that was launched has done a batch, on a machine that is busy
AIMED_S: Final = 240.0  # until the step is seen, from the start of a JVM on; then it is killed wherever it is
DRAINED_S: Final = 600.0
LOOK_S: Final = 0.004
IDS_SHOWN: Final = 10
STEPS_AIMED: Final[tuple[Step, ...]] = ("planned", "staging", "staged", "published")

Victim: TypeAlias = Literal["driver", "worker"]
TargetName: TypeAlias = Literal["queue", "table"]


class Options(Struct, frozen=True, kw_only=True):
    """`folder` empty: a temporary one, removed after a clean verdict unless `keep`. `cluster_every` 0: never."""

    runs: int = RUNS
    seed: int = 1
    peers: int = 3
    cluster_every: int = CLUSTER_EVERY
    folder: str = ""
    keep: bool = False


class Aim(Struct, frozen=True):
    victim: Victim
    target: TargetName
    step: Step
    on_cluster: bool


class Run(Struct, frozen=True):
    """One kill; `hit`: the step in which each query was."""

    aim: Aim
    hit: dict[str, Step]
    after_s: float


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


def aims(runs: int, *, seed: int, cluster_every: int) -> list[Aim]:
    """Every step of both targets in turn, and one kill in five a worker's. A seed decides the order. On the cluster
    every second one is an executor's."""
    kinds: list[tuple[Victim, TargetName, Step]] = []
    for step in STEPS_AIMED:
        kinds += [("driver", "queue", step), ("driver", "table", step)]
    kinds += [("worker", "queue", "staging"), ("worker", "table", "staging")]
    drawn = random.Random(seed)
    made: list[Aim] = []
    while len(made) < runs:
        drawn.shuffle(kinds)
        for victim, target, step in kinds:
            round_, rest = divmod(len(made) + 1, cluster_every or runs + 1)
            if rest == 0 and round_ % 2 == 0:
                made.append(Aim("worker", target, "staging", on_cluster=True))
            else:
                made.append(Aim(victim, target, step, on_cluster=rest == 0))
    return made[:runs]


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
        self._options, self._folder, self._tell, self._stack = options, folder, tell, stack
        self._cluster = stack.enter_context(LocalCluster(options.peers, folder=folder / "peers"))
        self._client: BlockingClient = stack.enter_context(connect_blocking(self._cluster.addresses))
        self._client.create_queue(SOURCE, lanes=LANES)
        self._client.create_queue(SINK, lanes=LANES)
        self._watches: dict[str, Watch] = {
            "queue": Watch(folder / "to-queue", QueueTarget(self._cluster, SINK)),
            "table": Watch(folder / "to-table", DeltaTarget(folder / TABLE)),
        }
        self._spark: SparkCluster | None = None
        self._driver = Program("driver", ["-m", DRIVER], folder=folder)
        stack.callback(self._kill_driver)
        self._on_cluster = False
        self._written = 0
        self._random = random.Random(options.seed)
        self._begun = time.monotonic()

    def prove(self) -> Verdict:
        runs: list[Run] = []
        plan = aims(self._options.runs, seed=self._options.seed, cluster_every=self._options.cluster_every)
        for number, aim in enumerate(plan, 1):
            self._say(number, f"{aim.victim} at {aim.target} {aim.step}{' on a cluster' if aim.on_cluster else ''}")
            runs.append(self._run(aim))
        self._say(len(plan), "carrying the rest over")
        self._drain()
        self._kill_driver()
        rows = {f"{number}" for number in range(self._written)}
        copies = (bytes(v).decode() for batch in self._client.queue(SINK).read() for v in batch.values())
        books = {"queue": books_of(rows, copies), "table": books_of(rows, self._table_rows())}
        return Verdict(
            seed=self._options.seed,
            duration_s=time.monotonic() - self._begun,
            rows=self._written,
            runs=runs,
            books=books,
            batches={name: watch.done + 1 for name, watch in self._watches.items()},
            speculated=speculated(self._folder / "events"),
        )

    # ------------------------------------------------------------------ one run

    def _run(self, aim: Aim) -> Run:
        if not self._driver.alive or aim.on_cluster != self._on_cluster:
            self._kill_driver()
            self._launch(on_cluster=aim.on_cluster)
        watch = self._watches[aim.target]
        if aim.step == "planned" or aim.on_cluster:  # there, so that slow tasks are seen to be started twice
            self._wait_working(watch)
        begun = time.monotonic()
        while watch.look() != aim.step and time.monotonic() - begun < AIMED_S:
            self._feed()
            self._must_drive()
            time.sleep(LOOK_S)
        if aim.victim == "driver":
            self._kill_driver()
            return Run(aim, self._steps(), time.monotonic() - begun)
        hit = self._steps()  # the query goes on, so afterwards would be too late
        self._kill_worker()
        return Run(aim, hit, time.monotonic() - begun)

    def _steps(self) -> dict[str, Step]:
        return {name: watch.look() for name, watch in self._watches.items()}

    def _launch(self, *, on_cluster: bool) -> None:
        for watch in self._watches.values():
            watch.begin()
        self._on_cluster = on_cluster
        self._feed()
        flags = ["--servers", self._cluster.addresses, "--folder", str(self._folder)]
        if on_cluster:
            spark = self._spark_cluster()
            events = self._folder / "events"
            events.mkdir(exist_ok=True)
            logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
            plain = {"spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false"}
            settings = msgspec.json.encode({**spark.settings(), **logged, **plain}).decode()
            flags += ["--master", spark.url, "--settings", settings, "--slow-s", "1.5"]
        self._driver.launch(*flags)

    def _spark_cluster(self) -> SparkCluster:
        if self._spark is None:
            self._spark = self._stack.enter_context(SparkCluster(2, folder=self._folder / "spark"))
        return self._spark

    def _wait_working(self, watch: Watch) -> None:
        """Until the query has finished a batch in this life. Before that, what is planned was planned by the dead."""
        before = watch.done

        def working() -> bool:
            self._must_drive()
            self._feed()
            watch.look()
            return watch.done > before

        wait_until(working, timeout_s=STARTED_S, what=self._driver.last_words)

    def _kill_driver(self) -> None:
        below = processes.descendants(self._driver.pid) if self._driver.alive else []
        processes.kill(*([self._driver.pid] if self._driver.alive else []), *below)
        self._driver.kill()

    def _kill_worker(self) -> None:
        choice = self._random.random()

        def killed() -> bool:
            self._must_drive()
            if self._on_cluster:
                return self._spark_cluster().kill_executor(choice)
            there = sorted(processes.workers(self._driver.pid))
            return bool(there) and processes.kill(there[int(choice * len(there))]) == 1

        wait_until(killed, timeout_s=STARTED_S, what=self._driver.last_words)

    def _must_drive(self) -> None:
        if not self._driver.alive:
            raise Offline(f"the driver ended with {self._driver.exit_code}; {self._driver.last_words()}")

    # ------------------------------------------------------------------ rows

    def _feed(self) -> None:
        """Some batches are always waiting."""
        done = min(self._watches[name].done for name in self._watches)
        if self._written > (done + 6) * BATCH_ROWS:
            return
        queue = self._client.queue(SOURCE)
        for lane in range(LANES):
            numbers = range(self._written + lane, self._written + 2 * BATCH_ROWS, LANES)
            queue.enqueue_many([str(number).encode() for number in numbers], lane=lane)
        self._written += 2 * BATCH_ROWS

    def _drain(self) -> None:
        if not self._driver.alive or self._on_cluster:
            self._kill_driver()
            self._launch(on_cluster=False)

        def through() -> bool:
            self._must_drive()
            visible = sum(lane.end for lane in self._client.queue(SINK).survey().lanes)
            return visible >= self._written and len(self._table_rows()) >= self._written

        wait_until(through, timeout_s=DRAINED_S, what=self._driver.last_words)
        wait_until(lambda: all(w.look() == "idle" for w in self._watches.values()), timeout_s=DRAINED_S)

    def _table_rows(self) -> list[str]:
        from deltalake import DeltaTable

        table = open_table(f"delta:{self._folder / TABLE}")
        if not table.count():
            return []
        found: list[str] = DeltaTable(table.address.place).to_pyarrow_table(columns=["value"])["value"].to_pylist()
        return found

    def _say(self, run: int, now: str) -> None:
        self._tell(Progress(time.monotonic() - self._begun, run, self._options.runs, now))


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
