"""The runs of a campaign, drawn from a seed. A run is one kill -9 while one to four pledges are in flight.

These are the points at which a service, or the coordinator it talks to, is killed:

    prepare     before-prepare   after-prepare
    work        in-work          slow-work (the transaction stays open until the checkback has been asked)
    commit      before-commit    after-commit (committed, not submitted)
    submit      after-submit
    branch      branch-called    in-branch (its row is written, not committed)    branch-committed (not answered)
    checkback   checkback-called checkback-answered (decided and stored, not answered)
    anywhere    anytime          at a random moment, also inside of a commit and inside of the coordinator

When the service passes the point, it kills itself or the coordinator's process. A plan applies to one pledge and to
one life of the service.
"""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from msgspec import Struct

# ---------------------------------------------------------------------- crash points

Point: TypeAlias = Literal[
    "before-prepare",
    "after-prepare",
    "in-work",
    "slow-work",
    "before-commit",
    "after-commit",
    "after-submit",
    "branch-called",
    "in-branch",
    "branch-committed",
    "checkback-called",
    "checkback-answered",
    "anytime",
]
Victim: TypeAlias = Literal["service", "coordinator", "both"]

POINTS: Final[tuple[Point, ...]] = Point.__args__  # type: ignore[attr-defined]
VICTIMS: Final[tuple[Victim, ...]] = Victim.__args__  # type: ignore[attr-defined]
ASKED: Final[frozenset[Point]] = frozenset({"checkback-called", "checkback-answered"})  # neither submitted nor aborted
ON_COMMIT: Final[frozenset[Point]] = frozenset(
    {"before-commit", "after-commit", "after-submit", "branch-called", "in-branch", "branch-committed"}
)
THIS_PROCESS: Final = 0


class Plan(Struct, frozen=True):
    """`victims` are process ids; THIS_PROCESS is the service's own."""

    point: Point
    victims: tuple[int, ...]


class Order(Struct, frozen=True):
    """One pledge that the service is to make."""

    gid: str
    commit: bool
    plan: Plan | None = None


class Crashes:
    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}

    def arm(self, gid: str, plan: Plan) -> None:
        self._plans[gid] = plan

    def expects(self, gid: str) -> Point | None:
        plan = self._plans.get(gid)
        return plan.point if plan else None

    def at(self, point: Point, gid: str) -> None:
        """Kill the victims if this is the point of the pledge's plan: the coordinator before the service."""
        if self.expects(gid) != point:
            return
        plan = self._plans.pop(gid)
        for pid in sorted(plan.victims, reverse=True):
            with suppress(ProcessLookupError):
                os.kill(pid or os.getpid(), signal.SIGKILL)


# ---------------------------------------------------------------------- runs

StoreKind: TypeAlias = Literal["lane", "sqlite", "postgres", "mariadb", "redis"]
DatabaseKind: TypeAlias = Literal["sqlite", "postgres", "mariadb", "redis"]
STORES: Final[tuple[StoreKind, ...]] = StoreKind.__args__  # type: ignore[attr-defined]
DATABASES: Final[tuple[DatabaseKind, ...]] = DatabaseKind.__args__  # type: ignore[attr-defined]

RUNS: Final = 2000
BYSTANDERS_MAX: Final = 3
DELAY_S_MAX: Final = 0.12  # before a kill at any time: about as long as a pledge takes from end to end


class Run(Struct, frozen=True):
    """`commits`: for each pledge, whether its work is meant to commit. The kill is at a point of the first one.
    `delay_s` is for kills at any time."""

    number: int
    store: StoreKind
    database: DatabaseKind
    point: Point
    victim: Victim
    commits: tuple[bool, ...]
    delay_s: float

    def gid(self, which: int, *, seed: int) -> str:
        return f"{seed}-{self.number}-{which}"

    @property
    def name(self) -> str:
        return f"run {self.number}: {self.victim} killed, {self.point}, store {self.store}, database {self.database}"


def draw_run(number: int, *, seed: int, stores: tuple[StoreKind, ...], databases: tuple[DatabaseKind, ...]) -> Run:
    """Stores, databases, points and victims come in turn, so that all combinations occur; the rest is random."""
    draw = random.Random(f"{seed}/{number}")
    cells = [(store, database) for store in stores for database in databases]
    store, database = cells[number % len(cells)]
    steps = [(point, victim) for point in POINTS for victim in VICTIMS]
    random.Random(f"{seed}/{store}/{database}").shuffle(steps)
    point, victim = steps[number // len(cells) % len(steps)]
    first = True if point in ON_COMMIT else draw.random() < (0.5 if point in ASKED else 0.75)
    others = tuple(draw.random() < 0.8 for _ in range(draw.randint(0, BYSTANDERS_MAX)))
    return Run(number, store, database, point, victim, (first, *others), draw.uniform(0, DELAY_S_MAX))
