"""The hunt for a deliberate mistake: seeds are run until a checker reports a violation, or up to a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from avow.node.node import Node
from avow.node.roles import NodeRoles
from avow_lab.simulator.plan import MIXED, Plan, draw_plan
from avow_lab.simulator.simulation import Simulation, Verdict
from avow_lab.simulator.world import World


def as_drawn(plan: Plan) -> Plan:
    return plan


def often(*kinds: str, every_s: float = 0.06) -> Callable[[Plan], Plan]:
    """Adds more of these faults to a plan, for a rule that matters only then."""

    def aimed(plan: Plan) -> Plan:
        return replace(plan, faults=(*plan.faults, *kinds * 6), fault_every_s=min(plan.fault_every_s, every_s))

    return aimed


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake as data: what it replaces, and the plans it is hunted with.

    `listed`: listed in the design; the others were added. `seeds_max`: after so many seeds it counts as survived.
    `plan` adapts the faults of a plan to the rule. `simulate` runs something else than nodes.
    """

    name: str
    what: str
    roles: NodeRoles = field(default_factory=NodeRoles)
    world: type[World[Node]] = World
    strategy: str = MIXED
    plan: Callable[[Plan], Plan] = as_drawn
    listed: bool = False
    seeds_max: int = 10_000
    simulate: Callable[[int], Verdict] | None = None

    def run(self, seed: int) -> Verdict:
        if self.simulate is not None:
            return self.simulate(seed)
        plan = self.plan(draw_plan(seed, strategy=self.strategy))
        return Simulation(plan, roles=self.roles, world=self.world).run()


class Caught(Struct, frozen=True):
    name: str
    what: str
    strategy: str
    listed: bool
    seeds: int  # needed; 0: it survived
    violation: str


def hunt(mutation: Mutation, *, first_seed: int = 0) -> Caught:
    for tried in range(mutation.seeds_max):
        verdict = mutation.run(first_seed + tried)
        if verdict.violation:
            return _caught(mutation, tried + 1, verdict.violation)
    return _caught(mutation, 0, "")


def _caught(mutation: Mutation, seeds: int, violation: str) -> Caught:
    return Caught(mutation.name, mutation.what, mutation.strategy, mutation.listed, seeds, violation)
