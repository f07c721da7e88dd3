"""The plan of a campaign, drawn from a seed: what is killed, at which step, and on which testbed.

Victims: `driver` (Python, JVM, and all processes below them), or `worker`: one process that Spark runs Python in; on a
cluster a whole executor. Every step of both targets comes in turn. One testbed makes all kills on the cluster, one
after the other, because each change between cluster and local driver starts a driver that no kill needs.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

from avow_lab.campaigns.spark.watch import Step

STEPS_AIMED: Final[tuple[Step, ...]] = ("planned", "staging", "staged", "published")

Victim: TypeAlias = Literal["driver", "worker"]
TargetName: TypeAlias = Literal["queue", "table"]


class Kill(Struct, frozen=True):
    """`step`: of the query to `target`."""

    victim: Victim
    target: TargetName
    step: Step
    on_cluster: bool


class Run(Struct, frozen=True):
    """A kill that was made. `hit`: the step in which each query was."""

    kill: Kill = field(name="aim")
    hit: dict[str, Step]
    after_s: float


def draw_kills(count: int, *, seed: int, cluster_every: int) -> list[Kill]:
    """Every step of both targets in turn; one kill in five is a worker's. A seed decides the order. On the cluster
    every second kill is an executor's."""
    kinds: list[tuple[Victim, TargetName, Step]] = []
    for step in STEPS_AIMED:
        kinds += [("driver", "queue", step), ("driver", "table", step)]
    kinds += [("worker", "queue", "staging"), ("worker", "table", "staging")]
    drawn = random.Random(seed)
    made: list[Kill] = []
    while len(made) < count:
        drawn.shuffle(kinds)
        for victim, target, step in kinds:
            round_, rest = divmod(len(made) + 1, cluster_every or count + 1)
            if rest == 0 and round_ % 2 == 0:
                made.append(Kill("worker", target, "staging", on_cluster=True))
            else:
                made.append(Kill(victim, target, step, on_cluster=rest == 0))
    return made[:count]


def split(kills: Iterable[Kill], testbeds: int) -> list[list[Kill]]:
    """A list for each testbed. The first one makes those on the cluster before all others, and fewer of the others: a
    kill on the cluster takes as long as two."""
    lists: list[list[Kill]] = [[] for _ in range(testbeds)]
    for kill in sorted(kills, key=lambda kill: not kill.on_cluster):
        (lists[0] if kill.on_cluster else min(lists, key=_length)).append(kill)
    return lists


def _length(kills: list[Kill]) -> int:
    return len(kills) + sum(kill.on_cluster for kill in kills)
