"""The demo's story, act by act. Everything happens to real processes, and every number is measured.

    1 starting   the JVM first, peers and shop meanwhile
    2 orders     customers order; the pipeline writes rows
    3 peer       kill -9 of the peer that coordinates most lanes; the take-over and the customers' waits; it comes back
    4 shop       kill -9 of the shop in the middle of orders; it comes back, and checkbacks decide its open pledges
    5 draining   no more orders; wait until every order is a message and a row
    6 audit      Spark compares all stages, order by order
    7 next       hints

The peer is killed after a third of the requested orders (or seconds), the shop after two thirds, so a short run has all
acts. Every wait checks for a stop signal, and raises Interrupted.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from avow.errors import Offline
from avow.spark.pipelines.audit_report import Report
from avow.testing.cluster_wait import wait_until
from avow_lab.campaigns.chain.campaign import misreported
from avow_lab.campaigns.chain.chain import STARTED_S, DatabaseKind
from avow_lab.campaigns.chain.planted_errors import PlantKind, plant
from avow_lab.demo.chain import Decided, DemoChain
from avow_lab.demo.narration import Act, Event, Takeover, Verdict, plural

PEER_AT, SHOP_AT = 1 / 3, 2 / 3
FIRST_S: Final = 0.25  # between two orders of the first customer
DOWN_S: Final = 2.0  # of the peer, after others took over; orders go on
CLOSED_S: Final = 1.0  # of the shop
MIDDLE_S: Final = 2.0  # how long to look for a time at which orders are open
MIDDLE_ORDERS: Final = 3
IN_FLIGHT_S: Final = 0.05  # for requests that are in flight to a peer
PATIENCE_S: Final = 120.0

T = TypeVar("T")
Tell: TypeAlias = Callable[[Event], None]


class Options(Struct, frozen=True, kw_only=True):
    """`orders` 0: as many as are placed in `seconds`. `plant`: an error after the audit, followed by a second audit."""

    seconds: float
    orders: int = 0
    seed: int = 1
    peers: int = 3
    database: DatabaseKind = "sqlite"
    plant: PlantKind | None = None


class Interrupted(Exception):
    """A stop signal came."""


class Story:
    """`play` once. The caller must end the chain in any case."""

    def __init__(self, options: Options, chain: DemoChain, tell: Tell, stopping: threading.Event) -> None:
        self._options, self._chain, self._tell_all, self._stopping = options, chain, tell, stopping
        self.act: Act = "starting"
        self.started_s = time.monotonic()
        self.ordering_s = 0.0  # when it began
        self._takeover: Takeover | None = None
        self._decided: Decided | None = None
        self._stuck = ""

    def play(self) -> Verdict:
        self.start()
        self.flow()
        self.kill_peer()
        self.kill_shop()
        self.drain()
        verdict = self.audit()
        return verdict if self._options.plant is None else self.spoil(verdict, self._options.plant)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def share(self) -> float:
        """Of the orders, or of the time for them, that is done."""
        if not self.ordering_s:
            return 0.0
        if self._options.orders:
            return min(1.0, self._chain.load.answered / self._options.orders)
        return min(1.0, (time.monotonic() - self.ordering_s) / self._options.seconds)

    # ------------------------------------------------------------------------------------------------------- acts

    def start(self) -> None:
        chain, cluster = self._chain, self._chain.cluster
        self._tell("starting", "launching", "Spark's JVM starts, which takes longest")
        chain.launch_driver()
        chain.serve()
        pids = {number: cluster.pid(number) for number in cluster.founders}
        listed = ", ".join(f"{number} (pid {pid})" for number, pid in pids.items())
        self._tell("starting", "peers", f"peers {listed} are one cluster", pids=pids, addresses=cluster.addresses)
        self._tell("starting", "shop", f"the shop is open at {chain.shop.url}", pid=chain.shop.pid)

    def flow(self) -> None:
        chain = self._chain
        self._tell("orders", "first", "a first customer orders; Spark is still starting")
        self._wait(self._first_rows, what=chain.driver.log_tail, timeout_s=STARTED_S)
        chain.driver.wait_serving()
        waiting = len(chain.load.answers)
        text = f"Spark is running: the first of {plural(waiting, 'order')} that waited in the queue are rows"
        self._tell("orders", "rows", text, table=chain.table.url)
        self._tell("orders", "ordering", "many customers order; one order in eight is not paid and is rolled back")
        self.ordering_s = time.monotonic()
        chain.load.start()
        self._wait_share(PEER_AT)

    def kill_peer(self) -> None:
        chain, cluster = self._chain, self._chain.cluster
        named = chain.coordinators()
        peer = max(cluster.running, key=named.count)
        pid, lanes = cluster.pid(peer), [index for index, number in enumerate(named) if number == peer]
        usual_s, killed_s = chain.load.usual_s(until_s=time.monotonic()), time.monotonic()
        self._tell("peer", "killing", f"kill -9 {pid}: peer {peer}, coordinator of {len(lanes)} of {len(named)} lanes")
        cluster.kill(peer)
        if len(cluster.founders) > 1:
            after = self._wait(lambda: self._taken_over(peer, len(named)), what="no peer took over")
            known_s = time.monotonic() - killed_s
            successors = tuple(sorted({after[index] for index in lanes}))
            self._wait(lambda: chain.load.served_since(killed_s), what=chain.shop.log_tail)
            longest_s = chain.load.longest_s(since_s=killed_s)
            self._takeover = Takeover(peer, pid, len(lanes), successors, known_s, longest_s, usual_s)
            self._tell_takeover(self._takeover)
            self._pause(DOWN_S)
        cluster.restart(peer)
        self._tell("peer", "returned", f"peer {peer} is back (pid {cluster.pid(peer)}) and fetches what it missed")
        self._wait_share(SHOP_AT)

    def kill_shop(self) -> None:
        chain, pid = self._chain, self._chain.shop.pid
        self._kill_in_the_middle()
        with chain.load.kept_outside():
            gids = chain.undecided()
            text = f"kill -9 {pid}: the shop, with {plural(len(gids), 'order')} undecided: did they commit?"
            self._tell("shop", "killing", text, pid=pid, undecided=len(gids))
            self._pause(CLOSED_S)
            chain.shop.start()
            self._tell("shop", "returned", f"the shop is back (pid {chain.shop.pid}), and is asked", pid=chain.shop.pid)
            returned_s = time.monotonic()
            self._decided = self._wait(lambda: self._all_decided(gids), what="pledges stay undecided")
            self._tell_decided(self._decided, time.monotonic() - returned_s)
        self._wait_share(1.0)

    def drain(self) -> None:
        chain = self._chain
        began_s = time.monotonic()
        self._tell("draining", "closing", "no more orders; messages in flight are delivered")
        chain.load.finish()
        self._wait(lambda: chain.load.over, what=chain.shop.log_tail)
        try:
            chain.load.stop()  # raises a customer's error
            self._wait(self._arrived, what=chain.driver.log_tail)
        except Offline as error:  # the audit says more
            self._stuck = str(error)
            return
        took_s = time.monotonic() - began_s
        self._tell("draining", "drained", f"everything was delivered after {took_s:.1f} s", took_s=took_s)

    def spoil(self, before: Verdict, kind: PlantKind) -> Verdict:
        """Plant an error and audit again: the audit must find it."""
        self._tell("audit", "audited", "the audit before the error", clean=before.clean, counted=before.counted)
        planted = f"{kind} {plant(self._chain, kind).id}"
        self._tell("audit", "planted", f"an error was planted: {planted}")
        return self.audit(planted)

    def audit(self, planted: str = "") -> Verdict:
        chain = self._chain
        self._tell("audit", "auditing", "Spark joins database, pledges, queue and table, order by order")
        report = self._audited()
        committed, rolled_back = chain.load.counts
        return Verdict(
            seed=self._options.seed,
            duration_s=self.elapsed_s,
            counted=chain.sample(),
            report=report,
            told_committed=committed,
            told_rolled_back=rolled_back,
            repeated=chain.load.repeated,
            takeover=self._takeover,
            decided=self._decided,
            misreported=misreported(chain.load.answers, set(chain.committed())),
            stuck=self._stuck,
            planted=planted,
        )

    # ------------------------------------------------------------------------------------------------------ steps

    def _first_rows(self) -> bool:
        self._chain.load.order_one()
        self._pause(FIRST_S)
        return self._chain.rows() > 0

    def _taken_over(self, dead: int, lanes: int) -> list[int] | None:
        named = self._chain.coordinators()
        return named if len(named) >= lanes and not {0, dead} & set(named) else None

    def _kill_in_the_middle(self) -> None:
        """While some orders are open, or one. The shop is paused for each look, because an order is open for some
        milliseconds only, which is less than a request for the open ones takes."""
        chain, began_s, wanted = self._chain, time.monotonic(), MIDDLE_ORDERS
        while True:
            os.kill(chain.shop.pid, signal.SIGSTOP)
            self._pause(IN_FLIGHT_S)
            if len(chain.undecided()) >= wanted or chain.load.over:
                break
            os.kill(chain.shop.pid, signal.SIGCONT)
            self._pause(IN_FLIGHT_S)
            self._check_stopped()
            waited_s = time.monotonic() - began_s
            wanted = 0 if waited_s > 2 * MIDDLE_S else 1 if waited_s > MIDDLE_S else wanted
        chain.shop.kill()

    def _all_decided(self, gids: set[str]) -> Decided | None:
        decided = self._chain.decided(gids)
        return None if decided.open else decided

    def _arrived(self) -> bool:
        counts = self._chain.sample()
        return counts.committed == counts.messages == counts.rows and not self._chain.open_pledges()

    def _audited(self) -> Report:
        """In a thread, so that a stop signal is noticed meanwhile."""
        with ThreadPoolExecutor(1, thread_name_prefix="avow-audit") as pool:
            asked = pool.submit(self._chain.audit, self._chain.spec())
            try:
                self._wait(asked.done, what=self._chain.driver.log_tail, timeout_s=STARTED_S)
            except BaseException:
                self._chain.driver.kill()  # its answer is not needed
                raise
        return asked.result()

    # ------------------------------------------------------------------------------------------ waiting and reporting

    def _wait(
        self, predicate: Callable[[], T | None], *, what: str | Callable[[], str], timeout_s: float = PATIENCE_S
    ) -> T:
        def looked() -> T | None:
            self._check_stopped()
            return predicate()

        found = wait_until(looked, timeout_s=timeout_s, what=what)
        assert found is not None
        return found

    def _wait_share(self, share: float) -> None:
        load = self._chain.load
        self._wait(lambda: self.share >= share or load.over, what=self._chain.shop.log_tail, timeout_s=24 * 3600.0)

    def _pause(self, pause_s: float) -> None:
        if self._stopping.wait(pause_s):
            raise Interrupted

    def _check_stopped(self) -> None:
        if self._stopping.is_set():
            raise Interrupted
        self._chain.driver.check_running()

    def _tell(self, act: Act, event: str, text: str, **values: Any) -> None:
        self.act = act
        self._tell_all(Event(round(self.elapsed_s, 2), act, event, text, values))

    def _tell_takeover(self, one: Takeover) -> None:
        names = " and ".join(f"peer {number}" for number in one.successors) or "others"
        text = (
            f"{names} took over after {one.known_s:.2f} s; the longest wait for an answer was {one.longest_s:.2f} s "
            f"(usually {one.usual_s:.2f} s)"
        )
        self._tell("peer", "taken_over", text, takeover=one)

    def _tell_decided(self, one: Decided, took_s: float) -> None:
        text = (
            f"{one.by_checkback} of {one.undecided} decided by checkbacks within {took_s:.1f} s: committed and "
            f"delivered {one.committed}, not committed and never delivered {one.rolled_back}"
        )
        self._tell("shop", "decided", text, decided=one, took_s=round(took_s, 3))
