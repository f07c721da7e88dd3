"""A whole campaign: orders while somebody is killed again and again; then quiet; then the audit closes the books.

    starting -> killing (orders all the while) -> delivering (until orders == messages == rows, or too long) -> closing

What customers were told is held against the database as well: told committed and not there, or told rolled back and
there, is `misreported`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.errors import Offline
from avow.spark.java import find_java
from avow.spark.pipelines.audit_report import Report
from avow.testing.cluster_wait import wait_until
from avow.testing.prove_chain.chain import Auditor, Chain, DatabaseKind
from avow.testing.prove_chain.faults import draw_faults
from avow.testing.prove_chain.planting import Planted, PlantKind, names_exactly, plant

FAULTS: Final = 100
MASTER: Final = "local[2,8]"  # two cores; a task may fail eight times, since its process is killed on purpose
DELIVERED_S: Final = 300.0
LOOK_S: Final = 0.2
MISREPORTED_SHOWN: Final = 20


class Options(Struct, frozen=True, kw_only=True):
    """`seconds`: no more faults after that, 0 for no bound. `folder` empty: a temporary one, removed after a clean
    verdict unless `keep`."""

    faults: int = FAULTS
    seconds: float = 0.0
    seed: int = 1
    peers: int = 3
    database: DatabaseKind = "sqlite"
    master: str = MASTER
    plant: PlantKind | None = None
    folder: str = ""
    keep: bool = False


class Progress(Struct, frozen=True):
    elapsed_s: float
    phase: str
    faults: int
    of: int
    orders: int  # answered
    messages: int
    rows: int
    now: str = ""


class Verdict(Struct):
    seed: int
    database: DatabaseKind
    peers: int
    master: str
    duration_s: float
    faults: dict[str, int]
    told_committed: int
    told_rolled_back: int
    repeated: int  # questions that got no answer
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
        """With a planted error: it is named, and nothing else is."""
        if self.stuck or self.misreported:
            return False
        if self.planted is not None:
            return names_exactly(self.report, [self.planted])
        return self.report.clean and self.committed == self.messages == self.rows


Tell: TypeAlias = Callable[[Progress], None]


def prove_chain(options: Options, *, tell: Tell = lambda _: None) -> Verdict:
    """Raises AvowError when it cannot even begin."""
    find_java()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="avow-chain-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    chain = chain_of(options, folder)
    campaign = Campaign(options, chain, tell)
    try:
        campaign.start()
        campaign.kill()
        campaign.deliver()
        planted = plant(chain, options.plant) if options.plant else None
        chain.kill_driver()  # its memory is the audit's
        verdict = campaign.close_books(chain.audit, planted)
    finally:
        chain.close()
    if not (options.folder or options.keep) and verdict.clean:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        verdict.folder = str(folder)
        (folder / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    return verdict


def chain_of(options: Options, folder: Path) -> Chain:
    return Chain(
        peers=options.peers, database=options.database, master=options.master, folder=folder, seed=options.seed
    )


class Campaign:
    """In this order: start, kill, deliver, close_books. The chain is closed by whoever made it, whatever happens."""

    def __init__(self, options: Options, chain: Chain, tell: Tell = lambda _: None) -> None:
        self._options, self._chain, self._tell_all = options, chain, tell
        self._started = time.monotonic()
        self.done: Counter[str] = Counter()
        self._stuck = ""

    def start(self) -> None:
        self._tell_all(Progress(0.0, "starting peers, shop and Spark", 0, self._options.faults, 0, 0, 0))
        self._chain.start()

    def kill(self) -> None:
        """Returns when the last order is answered. Who does not come back is told in the verdict."""
        chain = self._chain
        self._tell("first orders")
        chain.load.start()
        try:
            chain.wait_writing()
            self._inflict_all()
        except Offline as error:  # somebody did not come back
            self._stuck = str(error)
        self._tell("delivering")
        try:
            chain.load.stop()
        except Offline as error:
            self._stuck = self._stuck or str(error)

    def _inflict_all(self) -> None:
        options = self._options
        ends = time.monotonic() + (options.seconds or float("inf"))
        for fault in draw_faults(options.faults, seed=options.seed):
            if time.monotonic() > ends:
                break
            time.sleep(fault.after_s)
            self._tell("killing", fault.victim)
            self._chain.inflict(fault)
            self.done[fault.victim] += 1

    def deliver(self) -> None:
        """Until every order that is committed is a message and a row, and no pledge is open. Too long is told and not
        raised: the audit says more."""
        committed = len(self._chain.committed())

        def delivered() -> bool:
            chain = self._chain
            chain.must_drive()
            self._tell("delivering")
            time.sleep(LOOK_S)
            return chain.rows() >= committed and chain.messages() >= committed and not chain.open_pledges()

        try:
            wait_until(delivered, timeout_s=DELIVERED_S, what=self._chain.driver.last_words)
        except Offline as error:
            self._stuck = self._stuck or str(error)

    def close_books(self, audit: Auditor, planted: Planted | None = None) -> Verdict:
        self._tell("closing the books")
        report = audit(self._chain.spec())
        told = self._chain.load.told
        return Verdict(
            seed=self._options.seed,
            database=self._options.database,
            peers=self._options.peers,
            master=self._options.master,
            duration_s=time.monotonic() - self._started,
            faults=dict(self.done),
            told_committed=sum(told.values()),
            told_rolled_back=len(told) - sum(told.values()),
            repeated=self._chain.load.repeated,
            committed=report.rows("business") or 0,
            messages=report.rows("queue") or 0,
            rows=report.rows("table") or 0,
            batches=self._chain.batches(),
            report=report,
            misreported=misreported(told, set(self._chain.committed())),
            planted=planted,
            stuck=self._stuck,
        )

    def _tell(self, phase: str, now: str = "") -> None:
        chain = self._chain
        counts = (len(chain.load.told), chain.messages(), chain.rows())
        elapsed_s = time.monotonic() - self._started
        self._tell_all(Progress(elapsed_s, phase, self.done.total(), self._options.faults, *counts, now))


def misreported(told: dict[str, bool], committed: set[str]) -> list[str]:
    wrong = [
        f"{order}: told committed, and it is not" for order, said in told.items() if said and order not in committed
    ]
    wrong += [
        f"{order}: told rolled back, and it is committed"
        for order, said in told.items()
        if not said and order in committed
    ]
    return sorted(wrong)[:MISREPORTED_SHOWN]
