"""What is to be killed, where, and on which bench: decided by a seed before anything runs.

Victims: `driver` (Python, JVM, and all that they started), or `worker`: one process that Spark runs Python in, on a
cluster a whole executor. Every step of both targets comes in turn. One bench has all runs of the cluster, one after the
other: whoever changes from the cluster to a local driver starts one more than it kills.
"""

from __future__ import annotations

import random
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from avow.testing.prove_spark.watching import Step

STEPS_AIMED: Final[tuple[Step, ...]] = ("planned", "staging", "staged", "published")

Victim: TypeAlias = Literal["driver", "worker"]
TargetName: TypeAlias = Literal["queue", "table"]


class Aim(Struct, frozen=True):
    victim: Victim
    target: TargetName
    step: Step
    on_cluster: bool


class Run(Struct, frozen=True):
    """One kill; `hit`: the step in which each query was."""

    aim: Aim
    hit: dict[str, Step]
    after_s: float


def aims(runs: int, *, seed: int, cluster_every: int) -> list[Aim]:
    """Every step of both targets in turn, and one kill in five a worker's. A seed decides the order. On the cluster
    every second one is an executor's."""
    kinds: list[tuple[Victim, TargetName, Step]] = []
    for step in STEPS_AIMED:
        kinds += [("driver", "queue", step), ("driver", "table", step)]
    kinds += [("worker", "queue", "staging"), ("worker", "table", "staging")]
    drawn = random.Random(seed)
    made: list[Aim] = []
    while len(made) < runs:
        drawn.shuffle(kinds)
        for victim, target, step in kinds:
            round_, rest = divmod(len(made) + 1, cluster_every or runs + 1)
            if rest == 0 and round_ % 2 == 0:
                made.append(Aim("worker", target, "staging", on_cluster=True))
            else:
                made.append(Aim(victim, target, step, on_cluster=rest == 0))
    return made[:runs]


def dealt(plan: list[Aim], benches: int) -> list[list[Aim]]:
    """A list for each bench. The first one has those of the cluster before all others, and fewer of those: one of them
    takes as long as two."""
    hands: list[list[Aim]] = [[] for _ in range(benches)]
    hands[0] = [aim for aim in plan if aim.on_cluster]
    for aim in plan:
        if not aim.on_cluster:
            min(hands, key=_length).append(aim)
    return hands


def _length(hand: list[Aim]) -> int:
    return len(hand) + sum(aim.on_cluster for aim in hand)
