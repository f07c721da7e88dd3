"""What became of a pledge, as values that can be told apart.

    Delivered            committed, and every branch has it
    CommittedPending     committed; delivery goes on by itself, whatever its first attempts said
    Stopped              committed, and a person stopped the delivery at the coordinator
    RolledBack           not committed, and it cannot be any more: nothing is delivered
    OutcomeUnknown       the commit gave no clear answer and the barrier could not be asked. The coordinator asks the
                         checkback and acts on what it says; `current()` tells what came of it

`committed` is True, False or None. A caller that was refused by a branch, or by the coordinator after its commit, is
never told that it failed: the transaction is there, and what was pledged will be delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Struct

from avow.client.outcomes import reader_of

PendingState: TypeAlias = Literal["prepared", "started", "delayed", "ongoing", "failing", "dead"]


@dataclass(frozen=True, slots=True)
class Delivered:
    """`result` is what the work returned."""

    committed: ClassVar[bool | None] = True
    gid: str
    result: Any = None


@dataclass(frozen=True, slots=True)
class CommittedPending:
    """`state`: prepared (the coordinator did not hear the submit; it will ask the checkback), started, delayed, ongoing
    (a branch wants time), failing (`reason` says why; it is tried again), dead (given up, until it is redriven)."""

    committed: ClassVar[bool | None] = True
    gid: str
    state: PendingState
    reason: str = ""
    next_at_ms: int = 0
    result: Any = None


@dataclass(frozen=True, slots=True)
class Stopped:
    committed: ClassVar[bool | None] = True
    gid: str
    reason: str = ""
    result: Any = None


@dataclass(frozen=True, slots=True)
class RolledBack:
    """`error` is what ended the work or its commit; None where only the coordinator was asked."""

    committed: ClassVar[bool | None] = False
    gid: str
    error: Exception | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    committed: ClassVar[bool | None] = None
    gid: str
    error: Exception | None = None
    reason: str = ""


Committed: TypeAlias = Delivered | CommittedPending | Stopped
Outcome: TypeAlias = Committed | RolledBack | OutcomeUnknown


class PledgeAnswer(Struct, frozen=True):
    """What a coordinator says of a pledge: to prepare and abort the first two, to submit the next, to a look all."""

    gid: str
    status: str
    delivery: str = "started"
    error: str = ""
    next_at_ms: int | None = None
    reason: str = ""
    last_error: str = ""


class PledgePage(Struct, frozen=True):
    """A page of a cluster's pledges, newest first. `next_position` is where the next one begins, empty at the end."""

    pledges: tuple[PledgeAnswer, ...] = ()
    next_position: str = ""


read_answer: Final = reader_of(PledgeAnswer)
read_page: Final = reader_of(PledgePage)
_PENDING: Final[dict[str, PendingState]] = {
    "prepared": "prepared",
    "delayed": "delayed",
    "ongoing": "ongoing",
    "failing": "failing",
    "dead": "dead",
}


def committed_outcome(answer: PledgeAnswer, *, result: Any = None) -> Committed:
    """Of a pledge that is submitted, or whose transaction is known to be committed."""
    why = answer.error or answer.reason or answer.last_error
    if answer.status == "succeeded":
        return Delivered(answer.gid, result)
    if answer.status == "failed":
        return Stopped(answer.gid, why, result)
    pending = _PENDING.get(answer.delivery, "started")
    return CommittedPending(answer.gid, pending, why, answer.next_at_ms or 0, result)


def current_outcome(answer: PledgeAnswer) -> Outcome:
    """Of what a coordinator says, to somebody who knows nothing of the transaction."""
    if answer.status == "prepared":
        return OutcomeUnknown(answer.gid, reason="prepared: neither submitted nor decided by its checkback")
    if answer.status == "failed":
        return RolledBack(answer.gid, reason=answer.reason)
    return committed_outcome(answer)
