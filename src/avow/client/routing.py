"""Where the next attempt goes, and when. Pure: no clock, no sockets.

A call may be sent to any peer, so the choice is about time, not about correctness. The rules:

 * the peer that is preferred (the lane's coordinator, as last heard) comes first, unless it failed just now
 * then the others in a fixed order beginning after the one that was asked last, those that failed lately at the end
 * an answer that names another coordinator is followed at once; everything else waits: 20 ms at first, doubling to
   500 ms, each time a random part of it, so that a thousand clients of a dead peer do not come back in step

Whether an attempt may be repeated is decided by its answer: `step_after` turns one into what to do next. Repeating is
always safe, because every attempt of a write carries the same write id.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol, TypeVar

from avow.client.http import Answer, Lost
from avow.client.outcomes import error_of
from avow.errors import AvowError, NotCoordinator, Offline, Unknown, UnknownQueue

BACKOFF_S: Final = 0.02
BACKOFF_S_MAX: Final = 0.5
_NAMED_MAX: Final = 2


class Candidate(Protocol):
    number: int
    gone: bool
    suspect_until: float


C = TypeVar("C", bound=Candidate)


def choose(peers: Sequence[C], *, preferred: int = 0, after: C | None = None, now: float) -> C:
    """The peer to ask next. `preferred` is a number, 0 for none; `after` was asked last, and is asked again last."""
    staying = [peer for peer in peers if not peer.gone] or list(peers)
    if after is not None and after in staying:
        at = staying.index(after) + 1
        staying = staying[at:] + staying[:at]
    trusted = [peer for peer in staying if peer.suspect_until <= now and peer is not after]
    for peer in trusted:
        if preferred and peer.number == preferred:
            return peer
    if trusted:
        return trusted[0]
    return min(staying, key=lambda peer: (peer.suspect_until > now, peer is after, peer.suspect_until))


class Backoff:
    """The pause before each further attempt, in seconds."""

    __slots__ = ("_random", "_tries")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self._tries = 0

    def next_s(self, *, named: bool = False) -> float:
        """`named`: the peer to ask was named by the last answer. That is followed at once, but not round in circles."""
        ceiling = min(BACKOFF_S * (1 << min(self._tries, 10)), BACKOFF_S_MAX)
        self._tries += 1
        if named and self._tries <= _NAMED_MAX:
            return 0.0
        return ceiling * (0.5 + 0.5 * self._random.random())

    def reset(self) -> None:
        self._tries = 0


class Step(Enum):
    DONE = "done"
    REFUSED = "refused"  # definite, and no other attempt would fare better
    ELSEWHERE = "elsewhere"  # definite for this attempt; another peer, or the same one later, may take it
    UNCERTAIN = "uncertain"  # this attempt may have happened


def step_after(answer: Answer | Lost) -> tuple[Step, AvowError | None]:
    """What an answer means for the next attempt, and the error to raise if there is none."""
    if isinstance(answer, Lost):
        if answer.sent:
            return Step.UNCERTAIN, Unknown(f"{answer.reason}; it may or may not have happened")
        return Step.ELSEWHERE, Offline(f"{answer.reason}; nothing was sent")
    if answer.ok:
        return Step.DONE, None
    error = error_of(answer)
    if not error.definite:
        return Step.UNCERTAIN, error
    return (Step.ELSEWHERE if error.retriable or isinstance(error, UnknownQueue) else Step.REFUSED), error


def hint_of(error: AvowError | None) -> tuple[int, str]:
    """(number, address) of the peer an error names as the one to ask; (0, "") if none."""
    if isinstance(error, NotCoordinator):
        return error.coordinator or 0, error.api or ""
    return 0, ""
