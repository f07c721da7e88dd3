"""Hunting a deliberate mistake: seeds are run until a checker objects, or a bound is reached."""

from __future__ import annotations

from typing import ClassVar, Protocol

from msgspec import Struct

from avow.testing.plan import Plan
from avow.testing.simulation import Verdict


class Drawn(Protocol):
    """A simulation of either strategy, made from a plan alone."""

    strategy: ClassVar[str]

    def __init__(self, plan: Plan) -> None: ...

    @staticmethod
    def draw(seed: int) -> Plan: ...

    def run(self) -> Verdict: ...


class Mutation(Struct, frozen=True):
    """`listed`: named by the design; the others were added. `seeds_max`: where a hunt gives up."""

    name: str
    what: str
    simulation: type[Drawn]
    listed: bool = False
    seeds_max: int = 10_000


class Caught(Struct, frozen=True):
    name: str
    what: str
    strategy: str
    listed: bool
    seeds: int  # needed; 0: it survived
    violation: str


def hunt(mutation: Mutation, *, first_seed: int = 0) -> Caught:
    simulation = mutation.simulation
    for tried in range(mutation.seeds_max):
        verdict = simulation(simulation.draw(first_seed + tried)).run()
        if verdict.violation:
            return _caught(mutation, tried + 1, verdict.violation)
    return _caught(mutation, 0, "")


def _caught(mutation: Mutation, seeds: int, violation: str) -> Caught:
    return Caught(mutation.name, mutation.what, mutation.simulation.strategy, mutation.listed, seeds, violation)
