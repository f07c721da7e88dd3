"""Who is killed, in which order. Pure: a seed decides.

A driver of Spark takes many seconds to be back, others take one or less, so most faults are theirs. The first four are
one of each.
"""

from __future__ import annotations

import random
from typing import Final, Literal, TypeAlias

from msgspec import Struct

Victim: TypeAlias = Literal["service", "peer", "driver", "worker"]
VICTIMS: Final[tuple[Victim, ...]] = Victim.__args__  # type: ignore[attr-defined]
_OF_EIGHT: Final[tuple[Victim, ...]] = ("service",) * 3 + ("peer",) * 2 + ("worker",) * 2 + ("driver",)
PAUSE_S: Final = (0.2, 1.6)  # until somebody is killed
DOWN_S: Final = (0.0, 1.0)  # until it is started again


class Fault(Struct, frozen=True):
    """`choice` picks one where there are several: a number from 0 up to, but not including, 1."""

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
    return [Fault(who, draw.uniform(*PAUSE_S), draw.uniform(*DOWN_S), draw.random()) for who in victims[:count]]
