"""Which processes are killed, in which order. Pure: a seed decides.

The first four faults are one of each kind. Of the others, most are kills of the service, peers and workers, because
they are back within a second; a driver of Spark takes many.
"""

from __future__ import annotations

import random
from typing import Final, Literal, TypeAlias

from msgspec import Struct

Victim: TypeAlias = Literal["service", "peer", "driver", "worker"]
VICTIMS: Final[tuple[Victim, ...]] = Victim.__args__  # type: ignore[attr-defined]
_OF_EIGHT: Final[tuple[Victim, ...]] = ("service",) * 3 + ("peer",) * 2 + ("worker",) * 2 + ("driver",)
PAUSE_S: Final = (0.2, 1.6)  # before a kill
DOWN_S: Final = (0.0, 1.0)  # before the restart


class Fault(Struct, frozen=True):
    """`choice` selects one of several processes: at least 0, below 1."""

    victim: Victim
    after_s: float
    down_s: float
    choice: float


def draw_faults(count: int, *, seed: int) -> list[Fault]:
    draw = random.Random(f"chain/{seed}")
    victims = list[Victim]()
    while len(victims) < count:
        block = list(VICTIMS if not victims else _OF_EIGHT)
        draw.shuffle(block)
        victims += block
    return [Fault(each, draw.uniform(*PAUSE_S), draw.uniform(*DOWN_S), draw.random()) for each in victims[:count]]
