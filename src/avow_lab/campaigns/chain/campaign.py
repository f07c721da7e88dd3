"""`avow prove --chain`: kills between a shop's commit and a table's row while customers order; then an audit.

    starting -> first orders -> killing -> delivering (until orders == messages == rows, or too long) -> auditing

The answers that customers got are compared with the database too: an order with the answer committed that is not there,
or with the answer rolled back that is there, is `misreported`.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

from msgspec import Struct

from avow.errors import Offline
from avow.spark.java import find_java
from avow.spark.pipelines.audit_report import Report
from avow_lab.campaigns.chain.chain import Auditor, Chain, DatabaseKind, draw_faults
from avow_lab.campaigns.chain.planted_errors import Planted, PlantKind, names_exactly, plant
from avow_lab.campaigns.harness import campaign

FAULTS: Final = 100
MASTER: Final = "local[2,8]"  # two cores; a task may fail eight times, since its process is killed on purpose
DELIVERED_S: Final = 300.0
POLL_S: Final = 0.2
MISREPORTED_SHOWN: Final = 20


class Options(campaign.Options, frozen=True, kw_only=True):
    """`seconds`: no more faults after that; 0: no bound."""

    faults: int = FAULTS
    seconds: float = 0.0
    peers: int = 3
    database: DatabaseKind = "sqlite"
    master: str = MASTER
    plant: PlantKind | None = None


class Progress(Struct, frozen=True):
    elapsed_s: float
    phase: str
    faults: int
    of: int
    orders: int  # answered
    messages: int
    rows: int
    victim: str = ""

    def line(self) -> str:
        victim = f"; now: {self.victim}" if self.victim else ""
        return (
            f"{self.elapsed_s:6.1f} s  {self.phase}: {self.faults} of {self.of} faults; "
            f"{self.orders:,} orders answered, {self.messages:,} messages, {self.rows:,} rows{victim}"
        )


class Verdict(Struct):
    seed: int
    database: DatabaseKind
    peers: int
    master: str
    duration_s: float
    faults: dict[str, int]
    told_committed: int
    told_rolled_back: int
    repeated: int  # requests that got no answer
    committed: int
    messages: int
    rows: int
    batches: int
    report: Report
    misreported: list[str]
    planted: Planted | None = None
    stuck: str = ""
    folder: str = ""

    @property
    def clean(self) -> bool:
        """With a planted error: the audit found it, and nothing else."""
        if self.stuck or self.misreported:
            return False
        if self.planted is not None:
            return names_exactly(self.report, [self.planted])
        return self.report.clean and self.committed == self.messages == self.rows


class ChainCampaign:
    def __init__(self, options: Options, folder: Path, audit: Auditor | None = None) -> None:
        find_java()
        self._options = options
        self.chain = Chain(
            peers=options.peers, database=options.database, master=options.master, folder=folder, seed=options.seed
        )
        self._audit = audit or self.chain.audit
        self._began = time.monotonic()
        self._done = Counter[str]()
        self._stuck = ""
        self._phase, self._victim, self._counts = "starting peers, shop and Spark", "", (0, 0, 0)

    def close(self) -> None:
        self.chain.close()

    def progress(self) -> Progress:
        done, of = self._done.total(), self._options.faults
        return Progress(time.monotonic() - self._began, self._phase, done, of, *self._counts, self._victim)

    def _enter(self, phase: str, victim: str = "") -> None:
        self._phase, self._victim = phase, victim
        self._counts = (len(self.chain.load.answers), self.chain.messages(), self.chain.rows())

    def start(self) -> None:
        self.chain.start()

    def inject_faults(self) -> None:
        """Ends when all orders are answered and delivered. What did not recover in time is noted in the verdict, since
        the audit says more."""
        self._enter("first orders")
        self.chain.load.start()
        for step in (self._kill, self.chain.load.stop, self._deliver):
            try:
                step()
            except Offline as error:
                self._stuck = self._stuck or str(error)

    def _kill(self) -> None:
        self.chain.wait_writing()
        ends = time.monotonic() + (self._options.seconds or float("inf"))
        for fault in draw_faults(self._options.faults, seed=self._options.seed):
            if time.monotonic() > ends:
                break
            time.sleep(fault.after_s)
            self._enter("killing", fault.victim)
            self.chain.inflict(fault)
            self._done[fault.victim] += 1

    def _deliver(self) -> None:
        """Returns when every committed order is a message and a row, and no pledge is open."""
        chain, committed = self.chain, len(self.chain.committed())

        def delivered() -> bool:
            self._enter("delivering")
            time.sleep(POLL_S)
            return chain.rows() >= committed and chain.messages() >= committed and not chain.open_pledges()

        chain.driver.wait(delivered, timeout_s=DELIVERED_S)

    def judge(self) -> Verdict:
        chain, options = self.chain, self._options
        planted = plant(chain, options.plant) if options.plant else None
        self._enter("auditing")
        if self._audit == chain.audit:
            chain.driver.kill()  # its memory is the audit's
        report = self._audit(chain.spec())
        answers = chain.load.answers
        return Verdict(
            seed=options.seed,
            database=options.database,
            peers=options.peers,
            master=options.master,
            duration_s=time.monotonic() - self._began,
            faults=dict(self._done),
            told_committed=sum(answers.values()),
            told_rolled_back=len(answers) - sum(answers.values()),
            repeated=chain.load.repeated,
            committed=report.rows("business") or 0,
            messages=report.rows("queue") or 0,
            rows=report.rows("table") or 0,
            batches=chain.batches(),
            report=report,
            misreported=misreported(answers, set(chain.committed())),
            planted=planted,
            stuck=self._stuck,
        )


def misreported(answers: dict[str, bool], committed: set[str]) -> list[str]:
    wrong = [
        f"{order}: told {'committed' if claimed else 'rolled back'}, and it is {'not' if claimed else 'committed'}"
        for order, claimed in answers.items()
        if claimed != (order in committed)
    ]
    return sorted(wrong)[:MISREPORTED_SHOWN]
