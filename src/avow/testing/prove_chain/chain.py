"""Everything between a commit and a row: peers, a database, a shop, a driver of Spark, a table. Started, killed, asked.

peers and shop      come from a nursery: back within a second
driver              Python and its JVM; it is launched and not waited for, since others may die meanwhile
worker              one of the processes that Spark runs Python in, or an executor; Spark starts another
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

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
from avow.testing.cluster_wait import wait_until
from avow.testing.nursery import Nursery
from avow.testing.nursery_peers import PEER, NurseryCluster
from avow.testing.programs import Program
from avow.testing.prove_chain import processes
from avow.testing.prove_chain.faults import Fault
from avow.testing.prove_chain.load import Load
from avow.testing.prove_chain.shop import QUEUE
from avow.testing.prove_pledges.servers import IMPORTED, Servers

DatabaseKind: TypeAlias = Literal["sqlite", "postgres"]
DATABASES: Final[tuple[DatabaseKind, ...]] = DatabaseKind.__args__  # type: ignore[attr-defined]
Auditor: TypeAlias = Callable[[AuditSpec], Report]

SHOP: Final = "avow.testing.prove_chain.shop"
PIPELINE: Final = "avow.testing.prove_chain.pipeline"
CLOSING: Final = "avow.testing.prove_chain.closing"
BACK_S: Final = 300.0  # until a driver that was launched writes rows
LANES: Final = 2
TABLE: Final = "orders"
AUDIT_S: Final = 600.0


class Chain:
    """`api_ports`, `link_ports`: of the peers, where they must be known ones."""

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
        self._servers = Servers(folder)
        self.nursery = Nursery(SHOP, PEER, *IMPORTED.get(database, ()), log=folder / "nursery.log")
        settings: Mapping[str, str] = {"pledge_store": "lane"}
        self.cluster = NurseryCluster(
            peers,
            nursery=self.nursery,
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
        self.lives = 0  # of the driver
        self.driver = self._driver()

    # ---------------------------------------------------------------------------------------------- begin and end

    def start(self) -> None:
        """Returns when the driver has made the table: nothing was ordered yet."""
        self.serve()
        self.launch_driver()
        wait_until(self._has_table, timeout_s=BACK_S, what=self.driver.last_words)

    def serve(self) -> None:
        """Database, peers, queue and shop; the driver may be launched before or after."""
        self._stack.callback(self._servers.close)
        self._servers.start({self._kind})
        self.database = self._servers.database(self._kind, "shop")
        self._stack.enter_context(self.nursery)
        self._stack.enter_context(self.cluster)
        self.client: BlockingClient = self._stack.enter_context(connect_blocking(self.cluster.addresses))
        self.client.create_queue(QUEUE, lanes=LANES)
        command = ["-m", SHOP, "--database", self.database, "--peers", self.cluster.addresses]
        self.shop = self._stack.enter_context(
            Program("shop", command, folder=self._folder, nursery=self.nursery)
        ).start()
        self._stack.callback(self.kill_driver)
        self.load = self._customers()
        self._stack.callback(self.load.close)

    def _driver(self) -> Program:
        places = ["--table", self.table.url, "--checkpoint", str(self._checkpoint), "--master", self._master]
        return Program("driver", ["-m", PIPELINE, "--servers", self.cluster.addresses, *places], folder=self._folder)

    def _customers(self) -> Load:
        return Load(self.shop, seed=self._seed)

    def close(self) -> None:
        self._stack.close()

    def launch_driver(self) -> None:
        self.lives += 1
        self._batches_at_start = self.batches()
        self.driver.launch()

    def kill_driver(self) -> None:
        """kill -9 for Python, its JVM, and what that started."""
        below = processes.descendants(self.driver.pid) if self.driver.alive else []
        processes.kill(*([self.driver.pid] if self.driver.alive else []), *below)
        self.driver.kill()

    # ------------------------------------------------------------------------------------------------------ faults

    def inflict(self, fault: Fault) -> None:
        """Kill, wait a moment, start again. A driver that is not back yet is waited for before it is killed."""
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
            self.kill_driver()
            time.sleep(fault.down_s)
            self.launch_driver()
        else:
            self._kill_worker(fault.choice)

    def _kill_worker(self, choice: float) -> None:
        """One that is gone by itself at that moment does not count: there is another."""

        def killed() -> bool:
            self.must_drive()
            there = sorted(processes.workers(self.driver.pid))
            return bool(there) and processes.kill(there[int(choice * len(there))]) == 1

        self.wait_writing()
        wait_until(killed, timeout_s=BACK_S, what=self.driver.last_words)

    def _has_table(self) -> bool:
        self.must_drive()
        return (self._folder / TABLE / DELTA_LOG).is_dir()

    def wait_writing(self) -> None:
        """Until the driver has finished a batch since it was launched."""

        def writes() -> bool:
            self.must_drive()
            return self.batches() > self._batches_at_start

        wait_until(writes, timeout_s=BACK_S, what=self.driver.last_words)

    def must_drive(self) -> None:
        """A driver that ended by itself is no fault of ours."""
        if not self.driver.alive:
            raise Offline(f"the driver ended with {self.driver.exit_code}; {self.driver.last_words()}")

    # ------------------------------------------------------------------------------------------------- what is there

    def batches(self) -> int:
        """Finished ones, as the checkpoint tells: the number of the last, from 1."""
        try:
            return max((int(path.name) + 1 for path in (self._checkpoint / "commits").glob("[0-9]*")), default=0)
        except OSError:
            return 0

    def committed(self) -> list[str]:
        return [row[0] for rows in query_rows(self.database, "select id from orders") for row in rows]

    def messages(self) -> int:
        return sum(lane.end for lane in self.client.queue(QUEUE).survey().lanes)

    def open_pledges(self) -> int:
        """A page of the newest at a time."""
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
            return 0  # there is none yet

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
        """In a process of its own."""
        asked, report = self._folder / "audit.json", self._folder / "report.json"
        asked.write_bytes(msgspec.json.encode(spec))
        report.unlink(missing_ok=True)
        with (self._folder / "audit.log").open("ab") as log:
            command = [sys.executable, "-m", CLOSING, str(asked), str(report)]
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=AUDIT_S, check=False
            )
        if ran.returncode or not report.exists():
            lines = (self._folder / "audit.log").read_text(errors="replace").strip().splitlines()
            raise Offline(f"the audit ended with {ran.returncode}: {' | '.join(lines[-3:])}")
        return msgspec.json.decode(report.read_bytes(), type=Report)
