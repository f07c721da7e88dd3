"""Chooses the peer for the next attempt. Pure: no clock, no sockets.

A call may be sent to any peer, so the choice affects latency, not correctness. The rules:

 * the preferred peer (the lane's last known coordinator) comes first, unless it failed recently
 * then the others in a fixed order starting after the one asked last; peers that failed recently come at the end
 * an answer that names another coordinator is followed at once; before any other retry there is a pause: 20 ms at
   first, doubling to 500 ms, partly random, so that a thousand clients of a dead peer do not retry in step

`step_after` decides from the answer whether an attempt may be repeated. Repeating is always safe, because every attempt
of a write carries the same write id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from avow.client.outcomes import error_of
from avow.errors import AvowError, NotCoordinator, Offline, Unknown, UnknownQueue
from avow.wire.http import Answer, Lost
from avow.writer.backoff import BACKOFF_S, BACKOFF_S_MAX, Backoff
from avow.writer.steps import Step

__all__ = ["BACKOFF_S", "BACKOFF_S_MAX", "Backoff", "Candidate", "Step", "choose", "hint_of", "step_after"]


class Candidate(Protocol):
    number: int
    gone: bool
    suspect_until: float


C = TypeVar("C", bound=Candidate)


def choose(peers: Sequence[C], *, preferred: int = 0, after: C | None = None, now: float) -> C:
    """The peer to ask next. `preferred` is a peer's number, 0 for none; `after`, the peer asked last, is the last
    choice."""
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


def step_after(answer: Answer | Lost) -> tuple[Step, AvowError | None]:
    """What an answer means for the next attempt, and the error to raise if no further attempt is made."""
    if isinstance(answer, Lost):
        if answer.sent:
            return Step.UNCERTAIN, Unknown(f"{answer.reason}; the call may or may not have happened")
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
