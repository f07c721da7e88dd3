"""A whole campaign: a ground for each store and database, runs in turn on all of them, then everything is judged.

Grounds work side by side, each in a thread; most of a run is waiting for a timeout, or until a pledge that a dead
coordinator held is due again. All peers and services come from one nursery, so a start costs little.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.errors import AvowError
from avow.testing.nursery import Nursery
from avow.testing.nursery_peers import PEER
from avow.testing.prove_pledges.findings import ANOMALIES, Found
from avow.testing.prove_pledges.ground import SERVICE, Ground
from avow.testing.prove_pledges.runs import DATABASES, STORES, DatabaseKind, Run, StoreKind, draw_run
from avow.testing.prove_pledges.servers import IMPORTED, Servers

LANE_PEERS: Final = 3
GROUNDS_PER_CORE: Final = 6
FINDINGS_KEPT: Final = 200


class Options(Struct, frozen=True, kw_only=True):
    """`folder` empty: a temporary one, removed after a clean verdict unless `keep`."""

    runs: int = 2000
    seed: int = 1
    stores: tuple[StoreKind, ...] = STORES
    databases: tuple[DatabaseKind, ...] = DATABASES
    folder: str = ""
    keep: bool = False


class Progress(Struct, frozen=True):
    elapsed_s: float
    phase: str
    runs: int
    of: int
    kills: int


class Cell(Struct, frozen=True):
    store: StoreKind
    database: DatabaseKind
    runs: int
    pledges: int
    committed: int
    kills: int


class Verdict(Struct):
    seed: int
    duration_s: float
    runs: int
    pledges: int
    committed: int
    kills: dict[str, int]  # service, coordinator
    points: dict[str, int]  # runs in which somebody died, by point
    not_reached: int  # runs whose pledge was over before it came to its point
    combinations: int  # of store, database, point and victim in which somebody died there
    told: dict[str, int]  # callers by what they heard; empty: their service died
    cells: list[Cell]
    checked: dict[str, int]
    violations: dict[str, int]
    findings: list[Found]
    stuck: str = ""
    folder: str = ""

    @property
    def clean(self) -> bool:
        return not self.violations and not self.stuck


Report: TypeAlias = Callable[[Progress], None]


def prove_pledges(options: Options, *, report: Report = lambda _: None) -> Verdict:
    """Raises AvowError when it cannot even begin."""
    folder = Path(options.folder or tempfile.mkdtemp(prefix="avow-pledges-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    campaign = Campaign(options, folder, report)
    try:
        verdict = campaign.run()
    finally:
        campaign.close()
    if not (options.folder or options.keep) and verdict.clean:
        shutil.rmtree(folder, ignore_errors=True)
        verdict.folder = ""
    else:
        (folder / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    return verdict


class Campaign:
    def __init__(self, options: Options, folder: Path, report: Report) -> None:
        self._options, self._folder, self._report = options, folder, report
        self._servers = Servers(folder)
        kinds = {*options.stores, *options.databases}
        imported = [name for kind in sorted(kinds) for name in IMPORTED.get(kind, ())]
        self._nursery = Nursery(SERVICE, PEER, *imported, log=folder / "nursery.log")
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._done = 0
        self._stop = threading.Event()
        self.grounds: dict[tuple[StoreKind, DatabaseKind], Ground] = {}

    def close(self) -> None:
        self._stop.set()
        for ground in self.grounds.values():
            ground.close()
        self._nursery.close()
        self._servers.close()

    def run(self) -> Verdict:
        options = self._options
        self._tell("starting servers")
        self._servers.start({*options.stores, *options.databases})
        self._nursery.start()
        runs = [
            draw_run(number, seed=options.seed, stores=options.stores, databases=options.databases)
            for number in range(options.runs)
        ]
        cells = list(dict.fromkeys((run.store, run.database) for run in runs))
        found, stuck = list[Found](), list[str]()
        with ThreadPoolExecutor(GROUNDS_PER_CORE * (os.cpu_count() or 1)) as pool:
            tried = [pool.submit(self._try, cell, [r for r in runs if (r.store, r.database) == cell]) for cell in cells]
            try:
                for future in tried:
                    findings, why = future.result()
                    found += findings
                    stuck += [why] if why else []
            except BaseException:  # an interrupt: what has begun ends after its run
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return self._verdict(runs, found, "; ".join(stuck))

    def _try(self, cell: tuple[StoreKind, DatabaseKind], runs: list[Run]) -> tuple[list[Found], str]:
        """All runs of one ground, and its judgement; why it could not go on, if it could not."""
        ground = self._ground(*cell)
        try:
            ground.start()
            for run in runs:
                if self._stop.is_set():
                    break
                ground.run(run)
                self._ran()
            return ground.judge(), ""
        except AvowError as error:
            return [], f"{ground.name}: {error}; {ground.logs()}"
        finally:
            ground.close()

    def _ground(self, store: StoreKind, database: DatabaseKind) -> Ground:
        name = f"{store}-{database}"
        with self._lock:
            ground = self.grounds[store, database] = Ground(
                name,
                nursery=self._nursery,
                database=self._servers.database(database, f"works_{name}"),
                settings={"pledge_store": self._servers.store(store, f"store_{name}")},
                peers=LANE_PEERS if store == "lane" else 1,
                folder=self._folder,
                seed=self._options.seed,
            )
        return ground

    # -------------------------------------------------------------------------------------------- telling

    def _ran(self) -> None:
        with self._lock:
            self._done += 1
        self._tell("killing")

    def _tell(self, phase: str) -> None:
        kills = sum(ground.kills.total() for ground in tuple(self.grounds.values()))
        elapsed_s = time.monotonic() - self._started
        self._report(Progress(elapsed_s, phase, self._done, self._options.runs, kills))

    def _verdict(self, runs: list[Run], found: list[Found], stuck: str) -> Verdict:
        made = [pledge for ground in self.grounds.values() for pledge in ground.made]
        cells = [
            Cell(store, database, _count(runs, store, database), len(g.made), g.committed, g.kills.total())
            for (store, database), g in sorted(self.grounds.items())
        ]
        kills = {who: sum(g.kills[who] for g in self.grounds.values()) for who in ("service", "coordinator")}
        points = Counter[str]()
        for ground in self.grounds.values():
            for (point, _), count in ground.reached.items():
                points[point] += count
        violations = {name: sum(one.anomaly == name for one in found) for name in ANOMALIES}
        return Verdict(
            seed=self._options.seed,
            duration_s=time.monotonic() - self._started,
            runs=self._done,
            pledges=len(made),
            committed=sum(cell.committed for cell in cells),
            kills=kills,
            points=dict(sorted(points.items())),
            not_reached=sum(ground.not_reached for ground in self.grounds.values()),
            combinations=sum(len(ground.reached) for ground in self.grounds.values()),
            told=dict(Counter(pledge.said for pledge in made).most_common()),
            cells=cells,
            checked=dict.fromkeys(ANOMALIES, len(made)),
            violations={name: count for name, count in violations.items() if count},
            findings=found[:FINDINGS_KEPT],
            stuck=stuck,
            folder=str(self._folder),
        )


def _count(runs: list[Run], store: StoreKind, database: DatabaseKind) -> int:
    return sum((run.store, run.database) == (store, database) for run in runs)
