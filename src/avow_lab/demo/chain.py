"""The testbed of the demo: the chain of `avow prove --chain` with its own driver and customers, and fast counts.

    launch_driver     first, because a JVM takes longest to start
    serve             database, peers, queue, shop; meanwhile the JVM starts
    sample            orders, messages, rows, coordinators. It runs several times a second, so it asks one peer only
    end               in order: customers, then the pipeline after its batch, then the peers. Nothing is left

Ports are those of `avow up` if they are free, so that the commands of a README work; otherwise free ones.

The effect of a kill is what customers wait. So the demo shows the longest time between an order and its answer during a
take-over, and not only how long the take-over took; the usual time is shown for comparison.

A sample takes as long as a peer, a database and a table need to answer, and one of them may just have been killed. So
neither the story nor the screen waits for samples: a thread takes them. A sample that fails is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from avow.errors import Offline
from avow.spark.pipelines.audit_inputs import query_rows
from avow.spark.pipelines.audit_report import Report
from avow.spark.pipelines.audit_spec import AuditSpec
from avow.spark.pipelines.status import query_folder
from avow.testing import processes
from avow.testing.cluster_ports import Ports
from avow.transport.blocking import BlockingConnection
from avow.wire.http import Address, Lost
from avow_lab.campaigns.chain.chain import AUDIT_S, Chain, DatabaseKind
from avow_lab.campaigns.chain.load import ORDER_TIMEOUT_S, Load
from avow_lab.campaigns.chain.shop import QUEUE, Order
from avow_lab.campaigns.harness.programs import Program
from avow_lab.campaigns.harness.spark_driver import SparkDriver, last_batch

# ---------------------------------------------------------------------- customers

CUSTOMERS: Final = 6
THINK_S: Final = 0.05
RETRY_S: Final = 0.5


FIRST: Final = "first"


class Waited(Struct, frozen=True):
    """An order and its answer, in seconds of one clock."""

    order: str
    asked_s: float
    answered_s: float

    @property
    def took_s(self) -> float:
        return self.answered_s - self.asked_s


class Customers(Load):
    def __init__(self, shop: Program, *, seed: int, orders: int = 0) -> None:
        super().__init__(shop, seed=seed, orders=orders, customers=CUSTOMERS, think_s=THINK_S, retry_s=RETRY_S)
        self._waited: list[Waited] = []
        self._first = 0
        self._door = threading.Event()
        self._door.set()

    def order_one(self) -> None:
        """By the first customer, while Spark still starts."""
        self._first += 1
        order = Order(f"o-{self._seed}-{FIRST}-{self._first}", 1)
        self.answers[order.id] = super()._order(order)

    @contextmanager
    def kept_outside(self) -> Iterator[None]:
        """No customer sends a request while the block runs, so that none of them can decide an open order."""
        self._door.clear()
        try:
            yield
        finally:
            self._door.set()

    def _ask(self, order: Order) -> bool | None:
        self._door.wait(ORDER_TIMEOUT_S)
        return super()._ask(order)

    def _order(self, order: Order) -> bool:
        asked_s = time.monotonic()
        committed = super()._order(order)
        self._waited.append(Waited(order.id, asked_s, time.monotonic()))
        return committed

    @property
    def answered(self) -> int:
        """Orders of all but the first customer."""
        return len(self._waited)

    @property
    def counts(self) -> tuple[int, int]:
        """Orders with the answer committed, and with the answer rolled back."""
        answers = list(self.answers.values())
        return sum(answers), len(answers) - sum(answers)

    def usual_s(self, *, until_s: float) -> float:
        """The median of the orders that were answered until then."""
        found = [one.took_s for one in tuple(self._waited) if one.answered_s <= until_s]
        return statistics.median(found) if found else 0.0

    def longest_s(self, *, since_s: float) -> float:
        """Of all orders that were open at that moment or came later."""
        return max((one.took_s for one in tuple(self._waited) if one.answered_s >= since_s), default=0.0)

    def served_since(self, moment_s: float) -> bool:
        """Whether each customer has an answer to an order that it placed after that time, or all are done."""
        served = {customer_of(one.order) for one in tuple(self._waited) if one.asked_s >= moment_s}
        return len(served) == CUSTOMERS or self.over


def customer_of(order: str) -> str:
    """o-SEED-CUSTOMER-NUMBER"""
    return order.rsplit("-", 2)[1]


# ---------------------------------------------------------------------- the chain

DRIVER: Final = "avow_lab.demo.driver"
MASTER: Final = "local[2]"
FIRST_PORT: Final = 7401
LINKS_AFTER: Final = 100  # as `avow up` does it
STOP_S: Final = 8.0
PLEDGES: Final = "/v1/pledges?limit=1000"
CHECKBACK: Final = "00"


class PeerSample(Struct, frozen=True):
    """`coordinates`: lanes of queues and of pledges, and the metadata lane."""

    number: int
    pid: int
    alive: bool
    coordinates: int


class Sample(Struct, frozen=True):
    committed: int = 0  # orders in the database
    messages: int = 0
    rows: int = 0
    peers: tuple[PeerSample, ...] = ()

    @property
    def lag(self) -> int:
        """Orders that are not rows yet."""
        return max(0, self.committed - self.rows)


class Decided(Struct, frozen=True):
    """Pledges whose shop was killed before it could submit or abort them, and how they were decided since."""

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

    def _driver(self) -> SparkDriver:
        places = ["--table", self.table.url, "--checkpoint", str(self._checkpoint), "--master", self._master]
        command = ["-m", DRIVER, "--servers", self.cluster.addresses, *places]
        return SparkDriver("driver", [*command, "--scratch", str(self._scratch)], folder=self._folder)

    @property
    def _scratch(self) -> Path:
        """Temporary files of Spark and its Python processes, which leave them behind when they are killed."""
        return self._folder / "spark"

    def launch_driver(self) -> None:
        self.launches += 1
        self._scratch.mkdir(parents=True, exist_ok=True)
        self.driver.launch(environment={"TMPDIR": str(self._scratch)})

    def _customers(self) -> Customers:
        return Customers(self.shop, seed=self._seed, orders=self._orders)

    # ------------------------------------------------------------------------------------------------- what is there

    def batches(self) -> int:
        return last_batch(Path(query_folder(str(self._checkpoint))) / "commits") + 1

    def sample(self) -> Sample:
        """A count that cannot be read at the moment has its previous value."""
        lanes = self._lanes()
        self._messages = max(self._messages, sum(lane["end"] for lane in lanes if lane.get("queue") == QUEUE))
        running = set(self.cluster.running)
        named = [int(lane["coordinator"] or 0) for lane in lanes]
        peers = tuple(
            PeerSample(n, self.cluster.pid(n), n in running, named.count(n) if n in running else 0)
            for n in self.cluster.founders
            if n in self.cluster.processes
        )
        return Sample(self.count_orders(), self._messages, self.rows(), peers)

    def count_orders(self) -> int:
        """The previous count while SQLite's file cannot be read: after a kill in a commit the shop must recover it."""
        with contextlib.suppress(sqlite3.Error):
            pages = query_rows(self.database, "select count(*) from orders")
            self._committed = sum(row[0] for rows in pages for row in rows)
        return self._committed

    def coordinators(self) -> list[int]:
        """Of each lane, by the first running peer that answers; 0 where there is none."""
        return [int(lane["coordinator"] or 0) for lane in self._lanes()]

    def _lanes(self) -> list[dict[str, Any]]:
        for number in self.cluster.running:
            with contextlib.suppress(Offline):
                view = self.cluster.ask(number, "/v1/cluster")
                return [*view["lanes"], view["metadata"]]
        return []

    def undecided(self) -> set[str]:
        """The newest pledges that were neither submitted nor aborted."""
        return {one["gid"] for one in self._pledges() if one["status"] == "prepared"}

    def decided(self, gids: set[str]) -> Decided:
        found = [one for one in self._pledges() if one["gid"] in gids]
        statuses = [one["status"] for one in found]
        asked = [one for one in found if any(map(_is_verdict, one["attempts"]))]
        rolled_back, prepared = statuses.count("failed"), statuses.count("prepared")
        return Decided(len(gids), len(found) - rolled_back - prepared, rolled_back, len(asked))

    def _pledges(self) -> list[dict[str, Any]]:
        """By the first running peer that answers, newest first. Raises Offline when none does."""
        for number in self.cluster.running:
            with contextlib.suppress(Offline):
                found: list[dict[str, Any]] = self.cluster.ask(number, PLEDGES)["pledges"]
                return found
        raise Offline("no peer answered the request for its pledges; nothing was changed")

    # -------------------------------------------------------------------------------------------------- the audit

    def audit(self, spec: AuditSpec) -> Report:
        """By the pipeline's Spark."""
        with BlockingConnection(Address("127.0.0.1", self.driver.port)) as connection:
            answer = connection.request("POST", "/audit", body=msgspec.json.encode(spec), timeout_s=AUDIT_S)
        if isinstance(answer, Lost):
            raise Offline(f"the driver did not answer the audit: {answer.reason}; {self.driver.log_tail()}")
        if answer.status != HTTPStatus.OK:
            raise Offline(f"the audit failed: {answer.body.decode(errors='replace')[:1_000]}")
        return msgspec.json.decode(answer.body, type=Report)

    # ----------------------------------------------------------------------------------------------------- the end

    def end(self) -> None:
        """May be called at any time, even before the start, and again."""
        try:
            if hasattr(self, "load"):
                self.load.close()
            self._stop_driver()
            self.cluster.stop_all()
        finally:
            self.driver.kill()
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


# ---------------------------------------------------------------------- samples

SAMPLE_S: Final = 0.4
KEPT: Final = 200


class Timed(Struct, frozen=True):
    at_s: float
    sample: Sample


class Sampler:
    """Takes samples between `start` and `stop`. `latest` is an empty Sample before the first."""

    def __init__(self, take: Callable[[], Sample]) -> None:
        self._take = take
        self._samples: deque[Timed] = deque(maxlen=KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="avow-demo-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def latest(self) -> Sample:
        return self._samples[-1].sample if self._samples else Sample()

    def rates(self, of: Callable[[Sample], int], *, last: int) -> list[float]:
        """Per second, between each sample and the next; at most `last` of them, the newest last."""
        pairs = itertools.pairwise(list(self._samples)[-last - 1 :])
        return [max(0, of(new.sample) - of(old.sample)) / max(new.at_s - old.at_s, 1e-3) for old, new in pairs]

    def values(self, of: Callable[[Sample], int], *, last: int) -> list[float]:
        return [float(of(one.sample)) for one in list(self._samples)[-last:]]

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            try:
                sample = self._take()
            except Exception:  # the boundary of this thread: a process was killed, or has not started yet
                continue
            self._samples.append(Timed(time.monotonic(), sample))
