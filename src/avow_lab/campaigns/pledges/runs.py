"""The runs of a campaign, drawn from a seed. A run is one kill while one to four pledges are in flight."""

from __future__ import annotations

import random
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from avow_lab.campaigns.pledges.crash_points import ASKED, ON_COMMIT, POINTS, VICTIMS, Point, Victim

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
