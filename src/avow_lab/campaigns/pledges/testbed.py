"""The testbed for one store and one database: a coordinator, a service, and runs on them, one after another.

In a run, some pledges are made at the same time, a process is killed and started again, and every caller gets an answer
or loses its connection. Then the coordinator is asked until it has decided all pledges of the run. The effects are
judged only at the end, so that late ones are counted too.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from os import kill
from pathlib import Path
from typing import Final

import msgspec

from avow.client.blocking import BlockingClient, connect_blocking
from avow.client.pledge import Delivered, RolledBack
from avow.errors import AvowError, Offline, UnknownPledge
from avow.testing.cluster_wait import wait_until
from avow.transport.blocking import BlockingConnection
from avow.wire.http import Address, Lost
from avow_lab.campaigns.harness.fork_server import ForkServer
from avow_lab.campaigns.harness.forked_peers import ForkedCluster
from avow_lab.campaigns.harness.programs import Program
from avow_lab.campaigns.pledges.databases import open_database
from avow_lab.campaigns.pledges.findings import Evidence, Found, Made, judge
from avow_lab.campaigns.pledges.runs import THIS_PROCESS, Order, Plan, Point, Run, Victim
from avow_lab.campaigns.pledges.service import QUEUE

SERVICE: Final = "avow_lab.campaigns.pledges.service"
ANSWER_S: Final = 40.0
REACHED_S: Final = 8.0  # until the victim has reached its crash point
DECIDED_S: Final = 60.0
CALLERS: Final = 8


class Testbed:
    """`settings` are the peers'; `service` is the program that makes the pledges. All calls block; each testbed is used
    by one thread."""

    def __init__(
        self,
        name: str,
        *,
        fork_server: ForkServer,
        database: str,
        settings: dict[str, str],
        peers: int,
        folder: Path,
        seed: int,
        service: Sequence[str] = ("-m", SERVICE),
    ) -> None:
        self.name, self._seed, self._fork_server, self._command = name, seed, fork_server, tuple(service)
        self._database, self._dsn = open_database(database), database
        self.cluster = ForkedCluster(
            peers, fork_server=fork_server, folder=folder / name / "cluster", settings=settings
        )
        self._folder = folder / name
        self._stack = ExitStack()
        self._callers = ThreadPoolExecutor(CALLERS)
        self.made: list[Made] = []
        self.kills: Counter[str] = Counter()
        self.reached: Counter[tuple[Point, Victim]] = Counter()
        self.not_reached = self.committed = 0
        self._undecided: dict[str, str] = {}

    def start(self) -> None:
        self._database.prepare()
        self._stack.enter_context(self.cluster)
        self._client: BlockingClient = self._stack.enter_context(connect_blocking(self.cluster.addresses))
        self._client.create_queue(QUEUE)
        command = [*self._command, "--database", self._dsn, "--peers", self.cluster.addresses]
        program = Program("service", command, folder=self._folder, fork_server=self._fork_server)
        self._service = self._stack.enter_context(program).start()

    def close(self) -> None:
        self._callers.shutdown(cancel_futures=True)
        self._stack.close()

    # ------------------------------------------------------------------------------------------------ a run

    def run(self, run: Run) -> None:
        peer = self._next_peer()
        plan = Plan(run.point, self._victims(run, peer))
        orders = [
            Order(run.gid(which, seed=self._seed), commit, plan if which == 0 else None)
            for which, commit in enumerate(run.commits)
        ]
        answers = [self._callers.submit(self._order, order) for order in orders]
        if run.point == "anytime":
            time.sleep(run.delay_s)
            self._kill(plan.victims)
        self._revive(run, peer)
        outcomes = [answer.result(ANSWER_S) for answer in answers]
        self._wait_decided(order.gid for order in orders)
        self.made += [
            Made(order.gid, order.commit, outcome, run.name) for order, outcome in zip(orders, outcomes, strict=True)
        ]

    def _next_peer(self) -> int:
        """The peer that may be killed as the coordinator: all of them in turn."""
        running = self.cluster.running
        return running[len(self.made) % len(running)]

    def _victims(self, run: Run, peer: int) -> tuple[int, ...]:
        service = THIS_PROCESS if run.point != "anytime" else self._service.pid
        coordinator = self.cluster.pid(peer)
        return {"service": (service,), "coordinator": (coordinator,), "both": (service, coordinator)}[run.victim]

    def _kill(self, pids: Iterable[int], number: int = signal.SIGKILL) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                kill(pid, number)

    def _revive(self, run: Run, peer: int) -> None:
        """Restart what was killed: the coordinator first, because a service waits for it."""
        process = self.cluster.process(peer)
        died: list[Callable[[], bool]] = []
        if run.victim != "service":
            died.append(lambda: not process.alive)
        if run.victim != "coordinator":
            died.append(lambda: not self._service.alive)
        try:
            wait_until(lambda: all(dead() for dead in died), timeout_s=REACHED_S)
            self.reached[run.point, run.victim] += 1
        except Offline:
            self.not_reached += 1
        if not process.alive:
            self.kills["coordinator"] += 1
            self.cluster.restart(peer)
        if not self._service.alive:
            self.kills["service"] += 1
            self._service.kill()
            self._service.start()

    def _order(self, order: Order) -> str:
        """The outcome's name as the service says it; empty if the service was killed before it answered."""
        with BlockingConnection(Address("127.0.0.1", self._service.port)) as connection:
            answer = connection.request("POST", "/pledge", body=msgspec.json.encode(order), timeout_s=ANSWER_S)
        if isinstance(answer, Lost):
            return ""
        return answer.body.decode() if answer.status == 200 else f"HTTP {answer.status}"

    # --------------------------------------------------------------------------------------------- decided

    def _wait_decided(self, gids: Iterable[str]) -> None:
        for gid in gids:
            try:
                wait_until(partial(self._is_decided, gid), timeout_s=DECIDED_S)
            except Offline:
                self._undecided[gid] = self._state_of(gid)
                self._kill((self._service.pid,), signal.SIGUSR1)  # it writes its stacks to its log

    def _is_decided(self, gid: str) -> bool:
        try:
            outcome = self._client.pledge(gid).current()
        except UnknownPledge:
            return True  # it was never prepared
        except AvowError:
            return False
        return isinstance(outcome, Delivered | RolledBack) or getattr(outcome, "state", "") == "dead"

    def _state_of(self, gid: str) -> str:
        try:
            outcome = self._client.pledge(gid).current()
        except AvowError as error:
            return f"the coordinator did not answer: {error}"
        return f"not decided after {DECIDED_S:g} s: {outcome}"

    # ---------------------------------------------------------------------------------------------- judged

    def judge(self) -> list[Found]:
        late = self._late()
        evidence = Evidence(self._database.works(), self._database.effects(), self._messages(), late, self._undecided)
        self.committed = len(evidence.works)
        known = {made.gid for made in self.made}
        strangers = {gid for gid, _ in evidence.effects} - known
        found = [Found("phantom", gid, "an effect of a pledge that was never made") for gid in sorted(strangers)]
        for made in self.made:
            found += judge(made, evidence)
        return found

    def _late(self) -> dict[str, str]:
        """Pledges that were not decided during their run but are by now, with the state they had then."""
        slow, self._undecided = self._undecided, {}
        self._wait_decided(slow)
        return {gid: state for gid, state in slow.items() if gid not in self._undecided}

    def _messages(self) -> Counter[str]:
        queue = self._client.queue(QUEUE)
        batches = queue.read(level="linearizable")
        return Counter(value.decode() for batch in batches for value in batch.values())

    def logs(self) -> str:
        service = getattr(self, "_service", None)
        return service.log_tail() if service else ""
