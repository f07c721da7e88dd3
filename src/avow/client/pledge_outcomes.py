"""The outcomes of a pledge.

    Delivered            committed, and delivered to every branch
    CommittedPending     committed; the coordinator continues to deliver, whatever the result of the first attempts
    Stopped              committed, but an operator stopped the delivery at the coordinator
    RolledBack           not committed, and cannot commit any more: nothing is delivered
    OutcomeUnknown       the commit gave no clear answer and the barrier could not be asked. The coordinator asks the
                         checkback and acts on its answer; `current()` returns the outcome then

`committed` is True, False or None. A refusal by a branch, or by the coordinator after the commit, is not reported as a
failure: the transaction is committed, and the pledge will be delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Struct

from avow.client.outcomes import reader_of

PendingState: TypeAlias = Literal["prepared", "started", "delayed", "ongoing", "failing", "dead"]


@dataclass(frozen=True, slots=True)
class Delivered:
    """`result` is the return value of the work."""

    committed: ClassVar[bool | None] = True
    gid: str
    result: Any = None


@dataclass(frozen=True, slots=True)
class CommittedPending:
    """`state`: prepared (the coordinator has not received the submit and will ask the checkback), started, delayed,
    ongoing (a branch asked for more time), failing (`reason` says why; it is retried), dead (given up until
    redriven)."""

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
    """`error` is the exception of the work or its commit; None if only the coordinator was asked."""

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
    """A coordinator's answer about a pledge. Prepare and abort set `gid` and `status`, submit also `delivery` to
    `next_at_ms`, a query all fields."""

    gid: str
    status: str
    delivery: str = "started"
    error: str = ""
    next_at_ms: int | None = None
    reason: str = ""
    last_error: str = ""


class PledgePage(Struct, frozen=True):
    """A page of a cluster's pledges, newest first. `next_position` is where the next page starts, empty at the end."""

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
    """The outcome of a pledge that is submitted, or whose transaction is known to be committed."""
    why = answer.error or answer.reason or answer.last_error
    if answer.status == "succeeded":
        return Delivered(answer.gid, result)
    if answer.status == "failed":
        return Stopped(answer.gid, why, result)
    pending = _PENDING.get(answer.delivery, "started")
    return CommittedPending(answer.gid, pending, why, answer.next_at_ms or 0, result)


def current_outcome(answer: PledgeAnswer) -> Outcome:
    """The outcome according to the coordinator, for a caller that knows nothing about the transaction."""
    if answer.status == "prepared":
        return OutcomeUnknown(answer.gid, reason="prepared: neither submitted nor decided by its checkback")
    if answer.status == "failed":
        return RolledBack(answer.gid, reason=answer.reason)
    return committed_outcome(answer)
