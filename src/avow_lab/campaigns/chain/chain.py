"""The testbed: everything between a commit and a row. Peers, a database, a shop, a driver of Spark, a table.

peers and shop      are started by a fork server: back within a second
driver              Python and its JVM; it is launched and not waited for, so that faults go on meanwhile
worker              one of the processes that Spark runs Python in, or an executor; Spark starts another

A seed decides which of these are killed, in which order. The first four faults are one of each kind. Of the others,
most are kills of the service, peers and workers, because they are back within a second; a driver of Spark takes many.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from avow.client.blocking import BlockingClient, connect_blocking
from avow.errors import AvowError, Offline
from avow.spark.pipelines.audit_inputs import query_rows
from avow.spark.pipelines.audit_report import Report
from avow.spark.pipelines.audit_rules import OPEN
from avow.spark.pipelines.audit_spec import (
    AuditSpec,
    BarrierInput,
    BusinessInput,
    PledgesInput,
    QueueInput,
    TableInput,
)
from avow.spark.tables import Table, open_table
from avow.spark.tables.address import DELTA_LOG
from avow_lab.campaigns.chain.load import Load
from avow_lab.campaigns.chain.shop import QUEUE
from avow_lab.campaigns.harness.database_servers import IMPORTED, DatabaseServers
from avow_lab.campaigns.harness.fork_server import ForkServer
from avow_lab.campaigns.harness.forked_peers import PEER, ForkedCluster
from avow_lab.campaigns.harness.programs import Program
from avow_lab.campaigns.harness.spark_driver import SparkDriver, last_batch

# ---------------------------------------------------------------------- faults

Victim: TypeAlias = Literal["service", "peer", "driver", "worker"]
VICTIMS: Final[tuple[Victim, ...]] = Victim.__args__  # type: ignore[attr-defined]
_OF_EIGHT: Final[tuple[Victim, ...]] = ("service",) * 3 + ("peer",) * 2 + ("worker",) * 2 + ("driver",)
PAUSE_S: Final = (0.2, 1.6)  # before a kill
DOWN_S: Final = (0.0, 1.0)  # before the restart


class Fault(Struct, frozen=True):
    """`choice` selects one of several processes: at least 0, below 1."""

    victim: Victim
    after_s: float
    down_s: float
    choice: float


def draw_faults(count: int, *, seed: int) -> list[Fault]:
    draw = random.Random(f"chain/{seed}")
    victims = list[Victim]()
    while len(victims) < count:
        block = list(VICTIMS if not victims else _OF_EIGHT)
        draw.shuffle(block)
        victims += block
    return [Fault(each, draw.uniform(*PAUSE_S), draw.uniform(*DOWN_S), draw.random()) for each in victims[:count]]


# ---------------------------------------------------------------------- the testbed

DatabaseKind: TypeAlias = Literal["sqlite", "postgres"]
DATABASES: Final[tuple[DatabaseKind, ...]] = DatabaseKind.__args__  # type: ignore[attr-defined]
Auditor: TypeAlias = Callable[[AuditSpec], Report]

SHOP: Final = "avow_lab.campaigns.chain.shop"
PIPELINE: Final = "avow_lab.campaigns.chain.pipeline"
AUDIT: Final = "avow_lab.campaigns.chain.audit_process"
STARTED_S: Final = 300.0  # until a driver that was launched writes rows
LANES: Final = 2
TABLE: Final = "orders"
AUDIT_S: Final = 600.0


class Chain:
    """`api_ports`, `link_ports`: of the peers; empty: free ones."""

    def __init__(
        self,
        *,
        peers: int,
        database: DatabaseKind,
        master: str,
        folder: Path,
        seed: int,
        api_ports: Sequence[int] = (),
        link_ports: Sequence[int] = (),
    ) -> None:
        self._kind, self._folder, self._master = database, folder, master
        self._servers = DatabaseServers(folder)
        self.fork_server = ForkServer(SHOP, PEER, *IMPORTED.get(database, ()), log=folder / "fork_server.log")
        settings: Mapping[str, str] = {"pledge_store": "lane"}
        self.cluster = ForkedCluster(
            peers,
            fork_server=self.fork_server,
            folder=folder / "cluster",
            settings=settings,
            api_ports=api_ports,
            link_ports=link_ports,
        )
        self.table: Table = open_table(f"delta:{folder / TABLE}")
        self._checkpoint = folder / "checkpoint"
        self._stack = ExitStack()
        self._seed = seed
        self._batches_at_start = 0
        self.launches = 0  # of the driver
        self.driver = self._driver()

    # ---------------------------------------------------------------------------------------------- begin and end

    def start(self) -> None:
        """Returns when the driver has made the table. No order was placed yet."""
        self.serve()
        self.launch_driver()
        self.driver.wait(lambda: (self._folder / TABLE / DELTA_LOG).is_dir(), timeout_s=STARTED_S)

    def serve(self) -> None:
        """Start database, peers and shop. The driver may be launched before or after."""
        self._stack.callback(self._servers.close)
        self._servers.start({self._kind})
        self.database = self._servers.database(self._kind, "shop")
        self._stack.enter_context(self.fork_server)
        self._stack.enter_context(self.cluster)
        self.client: BlockingClient = self._stack.enter_context(connect_blocking(self.cluster.addresses))
        self.client.create_queue(QUEUE, lanes=LANES)
        command = ["-m", SHOP, "--database", self.database, "--peers", self.cluster.addresses]
        self.shop = self._stack.enter_context(
            Program("shop", command, folder=self._folder, fork_server=self.fork_server)
        ).start()
        self._stack.callback(self.driver.kill)
        self.load = self._customers()
        self._stack.callback(self.load.close)

    def _driver(self) -> SparkDriver:
        places = ["--table", self.table.url, "--checkpoint", str(self._checkpoint), "--master", self._master]
        return SparkDriver(
            "driver", ["-m", PIPELINE, "--servers", self.cluster.addresses, *places], folder=self._folder
        )

    def _customers(self) -> Load:
        return Load(self.shop, seed=self._seed)

    def close(self) -> None:
        self._stack.close()

    def launch_driver(self) -> None:
        self.launches += 1
        self._batches_at_start = self.batches()
        self.driver.launch()

    # ------------------------------------------------------------------------------------------------------ faults

    def inflict(self, fault: Fault) -> None:
        """Kill a process, wait a moment, start it again. The driver and its workers must have finished a batch
        first."""
        if fault.victim == "service":
            self.shop.kill()
            time.sleep(fault.down_s)
            self.shop.start()
        elif fault.victim == "peer":
            running = self.cluster.running
            number = running[int(fault.choice * len(running))]
            self.cluster.kill(number)
            time.sleep(fault.down_s)
            self.cluster.restart(number)
        elif fault.victim == "driver":
            self.wait_writing()
            self.driver.kill()
            time.sleep(fault.down_s)
            self.launch_driver()
        else:
            self.wait_writing()
            self.driver.wait(lambda: self.driver.kill_worker(fault.choice), timeout_s=STARTED_S)

    def wait_writing(self) -> None:
        """Returns when the driver has finished a batch since it was launched."""
        self.driver.wait(lambda: self.batches() > self._batches_at_start, timeout_s=STARTED_S)

    # ------------------------------------------------------------------------------------------------- what is there

    def batches(self) -> int:
        """How many the pipeline has committed, by its checkpoint."""
        return last_batch(self._checkpoint / "commits") + 1

    def committed(self) -> list[str]:
        return [row[0] for rows in query_rows(self.database, "select id from orders") for row in rows]

    def messages(self) -> int:
        return sum(lane.end for lane in self.client.queue(QUEUE).survey().lanes)

    def open_pledges(self) -> int:
        count, position, more = 0, "", True
        while more:
            page = self.client.pledges(position=position)
            count += sum(pledge.status in OPEN for pledge in page.pledges)
            position, more = page.next_position, bool(page.next_position)
        return count

    def rows(self) -> int:
        try:
            return self.table.count()
        except AvowError:
            return 0  # the table does not exist yet

    def spec(self) -> AuditSpec:
        return AuditSpec(
            name="orders",
            servers=self.cluster.addresses,
            business=BusinessInput(database=self.database, query="select id from orders"),
            barrier=BarrierInput(database=self.database),
            pledges=PledgesInput(),
            queue=QueueInput(name=QUEUE, id="$.order_id"),
            table=TableInput(url=self.table.url, id="order_id"),
        )

    def audit(self, spec: AuditSpec) -> Report:
        asked, report = self._folder / "audit.json", self._folder / "report.json"
        asked.write_bytes(msgspec.json.encode(spec))
        report.unlink(missing_ok=True)
        with (self._folder / "audit.log").open("ab") as log:
            command = [sys.executable, "-m", AUDIT, str(asked), str(report)]
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=AUDIT_S, check=False
            )
        if ran.returncode or not report.exists():
            lines = (self._folder / "audit.log").read_text(errors="replace").strip().splitlines()
            raise Offline(
                f"the audit ended with exit code {ran.returncode}; its log ends with: {' | '.join(lines[-3:])}"
            )
        return msgspec.json.decode(report.read_bytes(), type=Report)
