"""The points at which a service, or the coordinator it talks to, is killed with -9.

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
