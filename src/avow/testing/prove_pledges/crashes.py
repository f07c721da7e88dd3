"""Where a service, or the coordinator it talks to, is killed with -9: named points that the testing service passes.

    prepare     before-prepare   after-prepare
    work        in-work          slow-work (the transaction stays open until the checkback has been asked)
    commit      before-commit    after-commit (committed, not submitted)
    submit      after-submit
    branch      branch-called    in-branch (its row is written, not committed)    branch-committed (not answered)
    checkback   checkback-called checkback-answered (decided and stored, not answered)
    anywhere    anytime          at a random moment, also inside of a commit and inside of the coordinator

Whoever is to die is killed by the service when it passes the point: itself, or the coordinator's process. A plan is for
one pledge and for one life of the service.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from msgspec import Struct

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
ASKED: Final[frozenset[Point]] = frozenset({"checkback-called", "checkback-answered"})  # nobody submits or aborts
ON_COMMIT: Final[frozenset[Point]] = frozenset(
    {"before-commit", "after-commit", "after-submit", "branch-called", "in-branch", "branch-committed"}
)
THIS_PROCESS: Final = 0


class Plan(Struct, frozen=True):
    """`victims` are process ids; THIS_PROCESS is the service's own."""

    point: Point
    victims: tuple[int, ...]


class Order(Struct, frozen=True):
    """One pledge that a service is asked to make."""

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
        """Passes, or ends somebody. The coordinator dies before the service."""
        if self.expects(gid) != point:
            return
        plan = self._plans.pop(gid)
        for pid in sorted(plan.victims, reverse=True):
            with suppress(ProcessLookupError):
                os.kill(pid or os.getpid(), signal.SIGKILL)
