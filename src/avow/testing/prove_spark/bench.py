"""One driver with its two queries, fed, watched, killed and started again; several of them share peers and machine.

    queue `lines-1` ──► driver ──┬──► queue `copies-1`      staged and published
                                 └──► Delta table           files and one entry of the log

Most of a run is waiting for a JVM to start and for Python processes to import, of which a bench uses less than two
cores: so there are two benches. Each has its own queues, table, checkpoints and rows; nothing of one is in the books of
the other. While a driver starts there is nothing to see, and it is looked at seldom: the looking has its cost, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Final

import msgspec

from avow.client.blocking import BlockingClient, connect_blocking
from avow.errors import Offline
from avow.spark.tables import open_table
from avow.spark.tables.address import DELTA_LOG
from avow.spark.tables.tables import Table
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_wait import wait_until
from avow.testing.programs import Program
from avow.testing.prove_chain import processes
from avow.testing.prove_spark.aims import Aim, Run
from avow.testing.prove_spark.driver import BATCH_ROWS, DRIVER, SINK, SOURCE, TABLE
from avow.testing.prove_spark.watching import DeltaTarget, QueueTarget, Step, Watch
from avow.testing.spark_cluster import SparkCluster

LANES: Final = 2
STARTED_S: Final = 300.0  # until a driver that was launched has done a batch, on a machine that is busy
AIMED_S: Final = 240.0  # until the step is seen, from the start of a JVM on; then it is killed wherever it is
DRAINED_S: Final = 600.0
ANSWERED_S: Final = 120.0
LOOK_S: Final = 0.004
LOOK_STARTING_S: Final = 0.05
CLUSTER_SLOW_S: Final = 1.5
EVENTS: Final = "events"


class Bench:
    """`settings`: further ones of Spark's. `over`: set when another bench has failed, so that this one ends too. Close
    the stack to kill what it started."""

    def __init__(
        self,
        number: int,
        *,
        cluster: LocalCluster,
        folder: Path,
        settings: Mapping[str, str],
        seed: int,
        over: Event,
        stack: ExitStack,
    ) -> None:
        self._settings = dict(settings)
        self.number, self.folder, self._cluster, self._over, self._stack = number, folder, cluster, over, stack
        self.written = 0
        self._source, self._sink = f"{SOURCE}-{number}", f"{SINK}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        self._client: BlockingClient = stack.enter_context(connect_blocking(cluster.addresses, timeout_s=ANSWERED_S))
        self._client.create_queue(self._source, lanes=LANES)
        self._client.create_queue(self._sink, lanes=LANES)
        self.watches: dict[str, Watch] = {
            "queue": Watch(folder / "to-queue", QueueTarget(cluster, self._sink)),
            "table": Watch(folder / "to-table", DeltaTarget(folder / TABLE)),
        }
        self._spark: SparkCluster | None = None
        self._driver = Program("driver", ["-m", DRIVER], folder=folder)
        stack.callback(self.kill_driver)
        self._on_cluster = False
        self._random = random.Random(seed + number)

    # ------------------------------------------------------------------ one run

    def run(self, aim: Aim) -> Run:
        if not self._driver.alive or aim.on_cluster != self._on_cluster:
            self.kill_driver()
            self._launch(on_cluster=aim.on_cluster)
        watch = self.watches[aim.target]
        if aim.step == "planned" or aim.on_cluster:  # there, so that slow tasks are seen to be started twice
            self._wait_working(watch)
        begun = time.monotonic()
        while watch.look() != aim.step and time.monotonic() - begun < AIMED_S:
            self._feed()
            self._must_drive()
            time.sleep(LOOK_S if watch.moved else LOOK_STARTING_S)
        if aim.victim == "driver":
            self.kill_driver()
            return Run(aim, self._steps(), time.monotonic() - begun)
        hit = self._steps()  # the query goes on, so afterwards would be too late
        self._kill_worker()
        return Run(aim, hit, time.monotonic() - begun)

    def drain(self) -> None:
        """Until every row is in both targets and both queries have noted it."""
        if not self._driver.alive or self._on_cluster:
            self.kill_driver()
            self._launch(on_cluster=False)

        def through() -> bool:
            self._must_drive()
            visible = sum(lane.end for lane in self._client.queue(self._sink).survey().lanes)
            there = (self.folder / TABLE / DELTA_LOG).exists()  # the driver makes it
            return visible >= self.written and there and self._table().count() >= self.written

        wait_until(through, timeout_s=DRAINED_S, what=self._driver.last_words)
        wait_until(self._noted, timeout_s=DRAINED_S, what=self._driver.last_words)
        self.kill_driver()

    def _noted(self) -> bool:
        self._must_drive()
        return all(watch.look() == "idle" for watch in self.watches.values())

    def _steps(self) -> dict[str, Step]:
        return {name: watch.look() for name, watch in self.watches.items()}

    def _wait_working(self, watch: Watch) -> None:
        """Until the query has finished a batch in this life. Before that, what is planned was planned by the dead."""
        before = watch.done

        def working() -> bool:
            self._must_drive()
            self._feed()
            watch.look()
            return watch.done > before

        wait_until(working, timeout_s=STARTED_S, what=self._driver.last_words)

    # ------------------------------------------------------------------ the driver

    def _launch(self, *, on_cluster: bool) -> None:
        for watch in self.watches.values():
            watch.begin()
        self._on_cluster = on_cluster
        self._feed()
        flags = ["--servers", self._cluster.addresses, "--folder", str(self.folder)]
        flags += ["--source", self._source, "--sink", self._sink]
        settings = self._settings
        if on_cluster:
            spark = self._spark_cluster()
            settings = {**settings, **spark.settings(), **logged(self.folder / EVENTS)}
            flags += ["--master", spark.url, "--slow-s", str(CLUSTER_SLOW_S)]
        self._driver.launch(*flags, "--settings", msgspec.json.encode(settings).decode())

    def _spark_cluster(self) -> SparkCluster:
        if self._spark is None:
            self._spark = self._stack.enter_context(SparkCluster(2, folder=self.folder / "spark"))
        return self._spark

    def kill_driver(self) -> None:
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
        if self._over.is_set():
            raise Offline("another bench failed, so this one ended")
        if not self._driver.alive:
            raise Offline(f"the driver ended with {self._driver.exit_code}; {self._driver.last_words()}")

    # ------------------------------------------------------------------ rows

    def _feed(self) -> None:
        """Some batches are always waiting."""
        done = min(watch.done for watch in self.watches.values())
        if self.written > (done + 6) * BATCH_ROWS:
            return
        queue = self._client.queue(self._source)
        for lane in range(LANES):
            numbers = range(self.written + lane, self.written + 2 * BATCH_ROWS, LANES)
            queue.enqueue_many([self._row(number).encode() for number in numbers], lane=lane)
        self.written += 2 * BATCH_ROWS

    def _row(self, number: int) -> str:
        return f"{self.number}:{number}"

    def rows(self) -> set[str]:
        return {self._row(number) for number in range(self.written)}

    def found(self, target: str) -> list[str]:
        """Every row that is visible there now, as often as it is."""
        if target == "queue":
            batches = self._client.queue(self._sink).read()
            return [bytes(value).decode() for batch in batches for value in batch.values()]
        from deltalake import DeltaTable

        table = DeltaTable(self._table().address.place)
        values: list[str] = table.to_pyarrow_table(columns=["value"])["value"].to_pylist()
        return values

    def _table(self) -> Table:
        return open_table(f"delta:{self.folder / TABLE}")


def logged(events: Path) -> dict[str, str]:
    """Spark's settings that make it note every attempt of a task in a file that can be read while it grows."""
    events.mkdir(exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
