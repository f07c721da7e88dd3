"""The step of its batch that a query is in, seen from outside: from its checkpoint and from its target.

    step        offsets/N   target                                       commits/N
    idle        written     has batch N                                  written
    planned     written     nothing new                                  -
    staging     written     some of the tasks' rows, invisible           -
    staged      written     the rows of all tasks, invisible             -
    published   written     visible, in one lane at least                -

Invisible rows leave traces: entries of the lanes' logs, or data files that Delta's log does not name. What a query left
behind when it was killed does not count after its restart: traces are counted from the start of a batch, or of a
driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from avow.errors import Offline
from avow.spark.tables.address import DELTA_LOG
from avow.testing.cluster import LocalCluster
from avow_lab.campaigns.harness.spark_driver import last_batch

Step: TypeAlias = Literal["idle", "planned", "staging", "staged", "published"]
STEPS: Final[tuple[Step, ...]] = Step.__args__  # type: ignore[attr-defined]
ENTRY: Final = re.compile(r"\d{20}\.json")


@dataclass(frozen=True, slots=True)
class Traces:
    """`staged`: entries or files, visible or not. `visible`: versions or commits."""

    staged: int
    visible: int


class Target(Protocol):
    whole: int  # traces of a batch whose tasks are done

    def traces(self) -> Traces | None:
        """None: not known at this moment."""


class QueueTarget:
    """Two tasks, two lanes, an entry each."""

    whole = 4

    def __init__(self, cluster: LocalCluster, queue: str) -> None:
        self._cluster, self._queue = cluster, queue

    def traces(self) -> Traces | None:
        try:
            lanes = self._cluster.ask(self._cluster.running[0], "/v1/cluster")["lanes"]
        except Offline:
            return None
        ours = [lane for lane in lanes if lane["queue"] == self._queue]
        return Traces(sum(lane["log_end"] for lane in ours), sum(lane["end"] for lane in ours))


class DeltaTarget:
    """Two tasks, a file each."""

    whole = 2

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def traces(self) -> Traces | None:
        entries = sum(ENTRY.fullmatch(path.name) is not None for path in (self._folder / DELTA_LOG).glob("*.json"))
        return Traces(sum(1 for _ in self._folder.glob("**/*.parquet")), entries)


class Watch:
    """One query. Call `look` more often than steps change."""

    def __init__(self, checkpoint: Path, target: Target) -> None:
        self._checkpoint, self._target = checkpoint, target
        self._batch = -1
        self._before = Traces(0, 0)
        self._begun: tuple[int, Traces | None] = (-1, None)
        self.moved = False  # whether anything has changed since `begin`

    def begin(self) -> None:
        """Call it before a driver is started: what exists now was left by earlier ones."""
        self._batch = self.planned
        self._before = self._target.traces() or self._before
        self._begun, self.moved = (self._batch, self._before), False

    def look(self) -> Step:
        planned, done = self.planned, self.done
        traces = self._target.traces()
        self.moved = self.moved or (planned, traces or self._before) != self._begun
        if traces is None or planned <= done:
            self._batch, self._before = planned, traces or self._before
            return "idle"
        if planned != self._batch:  # the end of the previous batch was missed
            self._batch, self._before = planned, traces
        return step_of(self._before, traces, whole=self._target.whole)

    @property
    def planned(self) -> int:
        return last_batch(self._checkpoint / "offsets")

    @property
    def done(self) -> int:
        return last_batch(self._checkpoint / "commits")


def step_of(before: Traces, now: Traces, *, whole: int) -> Step:
    """Of a batch that is not done."""
    if now.visible > before.visible:
        return "published"
    if now.staged - before.staged >= whole:
        return "staged"
    return "staging" if now.staged > before.staged else "planned"
