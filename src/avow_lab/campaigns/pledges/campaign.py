"""`avow prove --pledges`: a testbed for each store and database, and runs on all of them.

The testbeds work side by side, each in a thread. Most of a run is waiting: for a timeout, or until a pledge that a
killed coordinator held is due again. One fork server starts all peers and services.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from msgspec import Struct

from avow.errors import AvowError
from avow_lab.campaigns.harness import campaign
from avow_lab.campaigns.harness.database_servers import IMPORTED, DatabaseServers
from avow_lab.campaigns.harness.fork_server import ForkServer
from avow_lab.campaigns.harness.forked_peers import PEER
from avow_lab.campaigns.pledges.findings import ANOMALIES, Found
from avow_lab.campaigns.pledges.runs import DATABASES, RUNS, STORES, DatabaseKind, Run, StoreKind, draw_run
from avow_lab.campaigns.pledges.testbed import SERVICE, Testbed

LANE_PEERS: Final = 3
TESTBEDS_PER_CORE: Final = 6
FINDINGS_KEPT: Final = 200


class Options(campaign.Options, frozen=True, kw_only=True):
    runs: int = RUNS
    stores: tuple[StoreKind, ...] = STORES
    databases: tuple[DatabaseKind, ...] = DATABASES


class Progress(Struct, frozen=True):
    elapsed_s: float
    phase: str
    runs: int
    of: int
    kills: int

    def line(self) -> str:
        counts = f"{self.runs:,} of {self.of:,} runs, {self.kills:,} processes killed"
        return f"{self.elapsed_s:6.1f} s  {self.phase}: {counts}"


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
    points: dict[str, int]  # runs with a kill, by crash point
    not_reached: int  # runs whose pledge ended before it reached its crash point
    combinations: int  # of store, database, point and victim in which a kill happened
    told: dict[str, int]  # number of callers by the answer they got; empty: their service was killed
    cells: list[Cell]
    checked: dict[str, int]
    violations: dict[str, int]
    findings: list[Found]
    stuck: str = ""
    folder: str = ""

    @property
    def clean(self) -> bool:
        return not self.violations and not self.stuck


class PledgeCampaign:
    def __init__(self, options: Options, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._servers = DatabaseServers(folder)
        imported = [name for kind in sorted(self._kinds) for name in IMPORTED.get(kind, ())]
        self._fork_server = ForkServer(SERVICE, PEER, *imported, log=folder / "fork_server.log")
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._phase, self._done = "starting servers", 0
        self._stop = threading.Event()
        self._runs = list[Run]()
        self._found, self._stuck = list[Found](), list[str]()
        self.testbeds: dict[tuple[StoreKind, DatabaseKind], Testbed] = {}

    @property
    def _kinds(self) -> set[str]:
        return {*self._options.stores, *self._options.databases}

    def close(self) -> None:
        self._stop.set()
        for testbed in self.testbeds.values():
            testbed.close()
        self._fork_server.close()
        self._servers.close()

    def progress(self) -> Progress:
        kills = sum(testbed.kills.total() for testbed in tuple(self.testbeds.values()))
        return Progress(time.monotonic() - self._began, self._phase, self._done, self._options.runs, kills)

    def start(self) -> None:
        self._servers.start(self._kinds)
        self._fork_server.start()

    def inject_faults(self) -> None:
        self._phase, options = "killing", self._options
        self._runs = [
            draw_run(number, seed=options.seed, stores=options.stores, databases=options.databases)
            for number in range(options.runs)
        ]
        cells = dict[tuple[StoreKind, DatabaseKind], list[Run]]()
        for run in self._runs:
            cells.setdefault((run.store, run.database), []).append(run)
        with ThreadPoolExecutor(TESTBEDS_PER_CORE * (os.cpu_count() or 1)) as pool:
            working = [pool.submit(self._work, *cell, runs) for cell, runs in cells.items()]
            try:
                for future in working:
                    self._found += future.result()
            except BaseException:  # an interrupt: runs that have begun are finished
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _work(self, store: StoreKind, database: DatabaseKind, runs: list[Run]) -> list[Found]:
        """All runs of one testbed, and its findings. An error ends this testbed alone."""
        testbed = self._testbed(store, database)
        try:
            testbed.start()
            for run in runs:
                if self._stop.is_set():
                    break
                testbed.run(run)
                with self._lock:
                    self._done += 1
            return testbed.judge()
        except AvowError as error:
            self._stuck.append(f"{testbed.name}: {error}; {testbed.logs()}")
            return []
        finally:
            testbed.close()

    def _testbed(self, store: StoreKind, database: DatabaseKind) -> Testbed:
        name = f"{store}-{database}"
        with self._lock:
            testbed = self.testbeds[store, database] = Testbed(
                name,
                fork_server=self._fork_server,
                database=self._servers.database(database, f"works_{name}"),
                settings={"pledge_store": self._servers.store(store, f"store_{name}")},
                peers=LANE_PEERS if store == "lane" else 1,
                folder=self._folder,
                seed=self._options.seed,
            )
        return testbed

    def judge(self) -> Verdict:
        testbeds = self.testbeds.values()
        made = [pledge for testbed in testbeds for pledge in testbed.made]
        counts = Counter((run.store, run.database) for run in self._runs)
        cells = [
            Cell(*kinds, counts[kinds], len(testbed.made), testbed.committed, testbed.kills.total())
            for kinds, testbed in sorted(self.testbeds.items())
        ]
        points = Counter[str]()
        for testbed in testbeds:
            for (point, _), count in testbed.reached.items():
                points[point] += count
        return Verdict(
            seed=self._options.seed,
            duration_s=time.monotonic() - self._began,
            runs=self._done,
            pledges=len(made),
            committed=sum(cell.committed for cell in cells),
            kills={who: sum(testbed.kills[who] for testbed in testbeds) for who in ("service", "coordinator")},
            points=dict(sorted(points.items())),
            not_reached=sum(testbed.not_reached for testbed in testbeds),
            combinations=sum(len(testbed.reached) for testbed in testbeds),
            told=dict(Counter(pledge.answer for pledge in made).most_common()),
            cells=cells,
            checked=dict.fromkeys(ANOMALIES, len(made)),
            violations=dict(Counter(str(one.anomaly) for one in self._found)),
            findings=self._found[:FINDINGS_KEPT],
            stuck="; ".join(self._stuck),
        )
