"""The values of a writer: outcomes of attempts, the fields of a write, settings, and the writer's output."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from avow.errors import AvowError, is_transient


class Step(Enum):
    """What an answer means for the write."""

    DONE = "done"
    REFUSED = "refused"  # definite, and another attempt would be refused too
    ELSEWHERE = "elsewhere"  # this attempt did not happen; another peer, or the same one later, may accept the write
    UNCERTAIN = "uncertain"  # this attempt may have happened
    ENDED = "ended"  # no attempt so far has happened or will: the target they went to has ended


def step_of(error: AvowError) -> Step:
    """What an error answer means for the write."""
    if not error.definite:
        return Step.UNCERTAIN
    if error.needs_new_target:
        return Step.ENDED
    return Step.ELSEWHERE if is_transient(error.code) else Step.REFUSED


class Verdict(Enum):
    DONE = "done"
    REFUSED = "refused"  # it did not happen and will not happen
    UNKNOWN = "unknown"  # an attempt may have happened


class Write(Protocol):
    """The state that a writer keeps in each write. `Request` and a client's batch implement it.

    `number` orders the writes of one writer. `sent_at` is the time of the first attempt, 0.0 before. `tries` counts
    attempts, `due` is when the next may be made. `maybe`: an attempt may have happened. `bound`: the pub-sub lane it
    was sent to. `error`: the error of the last answer. `finished`: the verdict is known.
    """

    number: int
    deadline: float
    sent_at: float
    tries: int
    due: float
    maybe: bool
    bound: int | None
    error: AvowError | None
    finished: bool


class Request:
    """A write without content, for callers that keep the content themselves."""

    __slots__ = ("bound", "deadline", "due", "error", "finished", "maybe", "number", "sent_at", "tries")

    def __init__(self, *, deadline: float = inf, due: float = 0.0) -> None:
        self.deadline, self.due = deadline, due
        self.number = self.tries = 0
        self.sent_at = 0.0
        self.maybe = self.finished = False
        self.bound: int | None = None
        self.error: AvowError | None = None


W = TypeVar("W", bound=Write)


class Source(Protocol[W]):
    """Writes that have not been sent, or must be sent again."""

    def __len__(self) -> int: ...

    def take(self) -> W | None:
        """The next one to send."""
        ...

    def put_back(self, writes: Sequence[W], /) -> None:
        """Return writes that must be sent again to their place in the order."""
        ...

    def expired(self, now: float) -> list[W]:
        """Remove and return the writes whose deadline has passed."""
        ...

    def first_deadline(self) -> float:
        """The earliest deadline, `inf` if there is none."""
        ...


class Aim(Protocol):
    """Choose the target of the next attempts. Returns True if the last answer named it: then there is no pause."""

    def __call__(self, *, failed: bool) -> bool: ...


class Pauses(Struct, frozen=True, gc=False):
    """Pauses between attempts: `first_s`, doubled each time up to `max_s`. `spread` is the random fraction of each."""

    first_s: float
    max_s: float
    spread: float = 0.0

    def after(self, tries: int, chance: float) -> float:
        """The pause after `tries` earlier pauses; `chance` is a random number from 0 to 1."""
        ceiling = min(self.first_s * (1 << min(tries, 10)), self.max_s)
        return ceiling * (1.0 - self.spread + self.spread * chance)


class Settings(Struct, frozen=True, gc=False):
    """Settings of a writer.

    `window`: maximum attempts in flight. `ordered`: writes take effect in the order they were submitted; if false, each
    is retried independently. `in_lanes`: a write is bound to the lane it is sent to (pub-sub). `patience_s`: the
    deadline of a write that has none, counted from its first failed attempt; 0: none. `waits_for_answer`: an attempt in
    flight is always answered (by a node, not by a network), so at the deadline the writer waits for its answer.
    """

    window: int
    pauses: Pauses
    ordered: bool = False
    in_lanes: bool = False
    patience_s: float = 0.0
    waits_for_answer: bool = False


class Decided(Struct, Generic[W], frozen=True):
    write: W
    verdict: Verdict


class Ready(Struct, Generic[W], frozen=True):
    """What to do now: send the writes of `send`, report the verdicts of `decided`, and call `tick` and `drain` again
    at `wake_at` at the latest."""

    send: list[W]
    decided: list[Decided[W]]
    wake_at: float
