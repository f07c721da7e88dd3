"""The testbed: one driver with two queries. It is fed, observed, killed and started again.

    queue `lines-1` ──► driver ──┬──► queue `copies-1`      staged and published
                                 └──► Delta table           files and one entry of the log

Most of a run is waiting for a JVM to start and for Python processes to import, which needs less than two cores. So
there are two testbeds over the same peers, each with its own queues, table, checkpoints and rows. While a driver
starts, its step is polled seldom, because polling costs processor time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
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
from avow.testing.spark_cluster import SparkCluster
from avow_lab.campaigns.harness.spark_driver import SparkDriver
from avow_lab.campaigns.spark.driver import BATCH_ROWS, DRIVER, SINK, SOURCE, TABLE
from avow_lab.campaigns.spark.plan import Kill, Run
from avow_lab.campaigns.spark.watch import DeltaTarget, QueueTarget, Step, Watch

LANES: Final = 2
STARTED_S: Final = 300.0  # until a driver that was launched has finished a batch, on a busy machine
STEP_S: Final = 240.0  # until the step is seen, including the start of a JVM; then it is killed wherever it is
DRAINED_S: Final = 600.0
CLIENT_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.004
POLL_STARTING_S: Final = 0.05
CLUSTER_SLOW_S: Final = 1.5
EVENTS: Final = "events"


class Testbed:
    """`settings`: further settings of Spark. `over`: set when another testbed has failed, so that this one ends too.
    Closing the stack kills what it started."""

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
        self._client: BlockingClient = stack.enter_context(
            connect_blocking(cluster.addresses, timeout_s=CLIENT_TIMEOUT_S)
        )
        self._client.create_queue(self._source, lanes=LANES)
        self._client.create_queue(self._sink, lanes=LANES)
        self.watches: dict[str, Watch] = {
            "queue": Watch(folder / "to-queue", QueueTarget(cluster, self._sink)),
            "table": Watch(folder / "to-table", DeltaTarget(folder / TABLE)),
        }
        self._spark: SparkCluster | None = None
        self._driver = stack.enter_context(SparkDriver("driver", ["-m", DRIVER], folder=folder))
        self._on_cluster = False
        self._random = random.Random(seed + number)

    # ------------------------------------------------------------------ one run

    def run(self, kill: Kill) -> Run:
        self._ensure_driver(on_cluster=kill.on_cluster)
        watch = self.watches[kill.target]
        if kill.step == "planned" or kill.on_cluster:  # there, so that Spark has time to start slow tasks twice
            self._wait_working(watch)
        began = time.monotonic()
        while watch.look() != kill.step and time.monotonic() - began < STEP_S:
            self._feed()
            self._check_running()
            time.sleep(POLL_S if watch.moved else POLL_STARTING_S)
        if kill.victim == "driver":
            self._driver.kill()
            return Run(kill, self._steps(), time.monotonic() - began)
        hit = self._steps()  # before the kill, because the query goes on
        self._kill_worker()
        return Run(kill, hit, time.monotonic() - began)

    def drain(self) -> None:
        """Returns when every row is in both targets and both queries have committed their last batch."""
        self._ensure_driver(on_cluster=False)

        def is_through() -> bool:
            visible = sum(lane.end for lane in self._client.queue(self._sink).survey().lanes)
            exists = (self.folder / TABLE / DELTA_LOG).exists()  # the driver makes it
            return visible >= self.written and exists and self._table().count() >= self.written

        self._wait(is_through, timeout_s=DRAINED_S)
        self._wait(lambda: set(self._steps().values()) == {"idle"}, timeout_s=DRAINED_S)
        self._driver.kill()

    def _steps(self) -> dict[str, Step]:
        return {name: watch.look() for name, watch in self.watches.items()}

    def _wait_working(self, watch: Watch) -> None:
        """Returns when the query has finished a batch since its start. The first one may have been planned before."""
        before = watch.done

        def works() -> bool:
            self._feed()
            watch.look()
            return watch.done > before

        self._wait(works, timeout_s=STARTED_S)

    # ------------------------------------------------------------------ the driver

    def _ensure_driver(self, *, on_cluster: bool) -> None:
        if self._driver.alive and on_cluster == self._on_cluster:
            return
        self._driver.kill()
        for watch in self.watches.values():
            watch.begin()
        self._on_cluster = on_cluster
        self._feed()
        flags = ["--servers", self._cluster.addresses, "--folder", str(self.folder)]
        flags += ["--source", self._source, "--sink", self._sink]
        settings = self._settings
        if on_cluster:
            spark = self._spark_cluster()
            settings = {**settings, **spark.settings(), **event_log(self.folder / EVENTS)}
            flags += ["--master", spark.url, "--slow-s", str(CLUSTER_SLOW_S)]
        self._driver.launch(*flags, "--settings", msgspec.json.encode(settings).decode())

    def _spark_cluster(self) -> SparkCluster:
        if self._spark is None:
            self._spark = self._stack.enter_context(SparkCluster(2, folder=self.folder / "spark"))
        return self._spark

    def _kill_worker(self) -> None:
        choice = self._random.random()
        kill = self._spark_cluster().kill_executor if self._on_cluster else self._driver.kill_worker
        self._wait(lambda: kill(choice), timeout_s=STARTED_S)

    def _check_running(self) -> None:
        if self._over.is_set():
            raise Offline("another testbed failed, so this one ended")
        self._driver.check_running()

    def _wait(self, condition: Callable[[], bool], *, timeout_s: float) -> None:
        def reached() -> bool:
            self._check_running()
            return condition()

        self._driver.wait(reached, timeout_s=timeout_s)

    # ------------------------------------------------------------------ rows

    def _feed(self) -> None:
        """Keep some batches waiting in the source."""
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
        """All visible rows, with repetitions."""
        if target == "queue":
            batches = self._client.queue(self._sink).read()
            return [bytes(value).decode() for batch in batches for value in batch.values()]
        from deltalake import DeltaTable

        table = DeltaTable(self._table().address.place)
        values: list[str] = table.to_pyarrow_table(columns=["value"])["value"].to_pylist()
        return values

    def _table(self) -> Table:
        return open_table(f"delta:{self.folder / TABLE}")


def event_log(events: Path) -> dict[str, str]:
    """Settings that make Spark log every attempt of a task to a file that can be read while it grows."""
    events.mkdir(exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
