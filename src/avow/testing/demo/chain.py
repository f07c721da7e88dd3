"""What the demo consists of: the campaign's chain with its own driver and customers, and quick answers to how it does.

    launch_driver     first: a JVM takes longest
    serve             database, peers, queue, shop; meanwhile the JVM starts
    look              a Look: orders, messages, rows, who coordinates. Several times a second, so it asks one peer only
    end               orderly: customers, then the pipeline after its batch, then the peers. Nothing is left

Ports are those of `avow up` if they are free, so that what a README says can be typed; otherwise free ones.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from avow.errors import Offline
from avow.spark.pipelines.audit_inputs import query_rows
from avow.spark.pipelines.audit_report import Report
from avow.spark.pipelines.audit_spec import AuditSpec
from avow.spark.pipelines.status import query_folder
from avow.testing.cluster_ports import Ports
from avow.testing.demo.customers import Customers
from avow.testing.programs import Program
from avow.testing.prove_chain import processes
from avow.testing.prove_chain.chain import AUDIT_S, Chain, DatabaseKind
from avow.testing.prove_chain.shop import QUEUE

DRIVER: Final = "avow.testing.demo.driver"
MASTER: Final = "local[2]"
FIRST_PORT: Final = 7401
LINKS_AFTER: Final = 100  # as `avow up` does it
STOP_S: Final = 8.0
PLEDGES: Final = "/v1/pledges?limit=1000"
CHECKBACK: Final = "00"


class PeerLook(Struct, frozen=True):
    """`coordinates`: lanes of queues and of pledges, and the metadata lane."""

    number: int
    pid: int
    alive: bool
    coordinates: int


class Look(Struct, frozen=True):
    committed: int = 0  # orders in the database
    messages: int = 0
    rows: int = 0
    peers: tuple[PeerLook, ...] = ()

    @property
    def lag(self) -> int:
        """Orders that are no rows yet."""
        return max(0, self.committed - self.rows)


class Decided(Struct, frozen=True):
    """Pledges whose shop died before it could say what became of them: by whom they were decided since."""

    undecided: int
    committed: int = 0
    rolled_back: int = 0
    by_checkback: int = 0

    @property
    def open(self) -> int:
        return self.undecided - self.committed - self.rolled_back


class DemoChain(Chain):
    def __init__(self, *, peers: int, database: DatabaseKind, folder: Path, seed: int, orders: int) -> None:
        self._ports = Ports()
        api, link = usual_ports(peers, self._ports)
        self._orders = orders
        super().__init__(
            peers=peers,
            database=database,
            master=MASTER,
            folder=folder,
            seed=seed,
            api_ports=api,
            link_ports=link,
        )
        self.load: Customers
        self._messages = self._committed = 0

    def _driver(self) -> Program:
        places = ["--table", self.table.url, "--checkpoint", str(self._checkpoint), "--master", self._master]
        command = ["-m", DRIVER, "--servers", self.cluster.addresses, *places]
        return Program("driver", [*command, "--scratch", str(self._scratch)], folder=self._folder)

    @property
    def _scratch(self) -> Path:
        """Of Spark and its Pythons. It is the demo's own, since who is killed does not tidy up."""
        return self._folder / "spark"

    def launch_driver(self) -> None:
        self.lives += 1
        self._scratch.mkdir(parents=True, exist_ok=True)
        self.driver.launch(environment={"TMPDIR": str(self._scratch)})

    def _customers(self) -> Customers:
        return Customers(self.shop, seed=self._seed, orders=self._orders)

    # ------------------------------------------------------------------------------------------------- what is there

    def batches(self) -> int:
        commits = Path(query_folder(str(self._checkpoint))) / "commits"
        with contextlib.suppress(OSError):
            return max((int(path.name) + 1 for path in commits.glob("[0-9]*")), default=0)
        return 0

    def look(self) -> Look:
        """What cannot be asked at the moment is as it was, or not there."""
        lanes = self._lanes()
        self._messages = max(self._messages, sum(lane["end"] for lane in lanes if lane.get("queue") == QUEUE))
        running = set(self.cluster.running)
        named = [int(lane["coordinator"] or 0) for lane in lanes]
        peers = tuple(
            PeerLook(n, self.cluster.pid(n), n in running, named.count(n) if n in running else 0)
            for n in self.cluster.founders
            if n in self.cluster.processes
        )
        return Look(self.count_orders(), self._messages, self.rows(), peers)

    def count_orders(self) -> int:
        """As it was, while a file cannot be read: a shop that was killed in a commit has to open it first."""
        with contextlib.suppress(sqlite3.Error):
            pages = query_rows(self.database, "select count(*) from orders")
            self._committed = sum(row[0] for rows in pages for row in rows)
        return self._committed

    def coordinators(self) -> list[int]:
        """Of each lane, as the first peer that runs names them; 0 where there is none."""
        return [int(lane["coordinator"] or 0) for lane in self._lanes()]

    def _lanes(self) -> list[dict[str, Any]]:
        for number in self.cluster.running:
            with contextlib.suppress(Offline):
                said = self.cluster.ask(number, "/v1/cluster")
                return [*said["lanes"], said["metadata"]]
        return []

    def undecided(self) -> set[str]:
        """The newest pledges of which nobody has said whether their transaction committed."""
        return {one["gid"] for one in self._pledges() if one["status"] == "prepared"}

    def decided(self, gids: set[str]) -> Decided:
        found = [one for one in self._pledges() if one["gid"] in gids]
        statuses = [one["status"] for one in found]
        asked = [one for one in found if any(map(_is_verdict, one["attempts"]))]
        rolled_back, prepared = statuses.count("failed"), statuses.count("prepared")
        return Decided(len(gids), len(found) - rolled_back - prepared, rolled_back, len(asked))

    def _pledges(self) -> list[dict[str, Any]]:
        """As any peer that runs has them, newest first. Raises Offline when none answers."""
        for number in self.cluster.running:
            with contextlib.suppress(Offline):
                found: list[dict[str, Any]] = self.cluster.ask(number, PLEDGES)["pledges"]
                return found
        raise Offline("no peer could be asked for its pledges; nothing was changed")

    # -------------------------------------------------------------------------------------------------- the books

    def audit(self, spec: AuditSpec) -> Report:
        """By the pipeline's own Spark."""
        connection = http.client.HTTPConnection("127.0.0.1", self.driver.port, timeout=AUDIT_S)
        try:
            connection.request("POST", "/audit", msgspec.json.encode(spec))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Offline(f"the audit was not answered: {error}; {self.driver.last_words()}") from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise Offline(f"the audit could not be made: {body.decode(errors='replace')[:1_000]}")
        return msgspec.json.decode(body, type=Report)

    # ----------------------------------------------------------------------------------------------------- the end

    def end(self) -> None:
        """May be called at any time, also of a chain that was never started, and again."""
        try:
            if hasattr(self, "load"):
                self.load.close()
            self._stop_driver()
            self.cluster.stop_all()
        finally:
            self.kill_driver()
            self.close()
            self._ports.release()

    def _stop_driver(self) -> None:
        if not self.driver.alive:
            return
        below = processes.descendants(self.driver.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.driver.pid, signal.SIGTERM)
        if self.driver.wait_dead(STOP_S):
            processes.kill(*(pid for pid in below if Path(f"/proc/{pid}").exists()))


def _is_verdict(attempt: dict[str, Any]) -> bool:
    return attempt["branch_id"] == CHECKBACK and attempt["verdict"] in ("SUCCESS", "FAILURE")


def usual_ports(peers: int, ports: Ports) -> tuple[list[int], list[int]]:
    """Those of `avow up`, or none: then the cluster takes free ones."""
    api = list(range(FIRST_PORT, FIRST_PORT + peers))
    link = [port + LINKS_AFTER for port in api]
    return (api, link) if ports.claim(*api, *link) else ([], [])
