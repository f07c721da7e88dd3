"""One budget for the bytes that a peer holds on behalf of its clients.

    kind        what is held                                             share   when it is used up
    requests    bodies: while they are received, until the answer        1/8 *   reading pauses, then BUSY
    answers     what clients have not read yet                           3/8 *   reads wait, then BUSY
    received    channel messages without an acknowledged commit          1/4     reading pauses, then the channel ends
    pushed      channel messages that clients have not acknowledged      1/4     pushing waits

* `requests` has at most REQUESTS_SIZE_BYTES_MAX, and `answers` the rest of the half. More bodies would only wait for
the same disk and the same links, and heartbeats would wait behind them.

Each kind has a share of its own, so slow readers never stop a write. Within a share:

- Every connection or channel has an `Account`. The first FREE_SIZE_BYTES of each are not counted, so small requests
  always get through. Their number is bounded by the numbers of connections and channels.
- Room is given first to those that hold nothing, then to those that hold some, both in the order in which they asked.
  So a client with much does not starve one with little. Smaller requests do not overtake larger ones, or the largest
  would wait for ever.
- An account asks for all that it needs before it begins, and needs nothing more to finish. So nobody who waits can be
  what somebody else waits for.
- A single piece larger than the whole share gets room when nothing else is held.

Pure: it knows no clock. Its callers end waits that take too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from avow.limits import KIB, MIB

FREE_SIZE_BYTES: Final = 64 * KIB  # of each account
REQUESTS_SIZE_BYTES_MAX: Final = 16 * MIB
WAITING_MAX: Final = 256  # in one share: each of them may already hold one chunk from its socket
_PART_OF_ROOM: Final = 8  # a single answer takes at most this part of the room that is left


class Waiting:
    """`granted` is called when there is room; until then it can be cancelled."""

    __slots__ = ("account", "granted", "size")

    def __init__(self, account: Account, size: int, granted: Callable[[], None]) -> None:
        self.account, self.size, self.granted = account, size, granted


class Share:
    def __init__(self, kind: str, size_bytes_max: int) -> None:
        self.kind, self.size_bytes_max = kind, size_bytes_max
        self.held = 0
        self.refused = 0  # counted by those who refuse
        self._waiting: deque[Waiting] = deque()
        self._granting = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def crowded(self) -> bool:
        """Somebody waits for room."""
        return bool(self._waiting)

    @property
    def tight(self) -> bool:
        """Less than a quarter is left."""
        return bool(self._waiting) or 4 * self.held > 3 * self.size_bytes_max

    def part_for_one(self, wanted: int) -> int:
        """How much of `wanted` a single answer should take, so that others get something too."""
        return max(FREE_SIZE_BYTES, min(wanted, (self.size_bytes_max - self.held) // _PART_OF_ROOM))

    def open(self) -> Account:
        return Account(self)

    # ------------------------------------------------------------------ called by accounts

    def fits(self, size: int) -> bool:
        return not self.held or self.held + size <= self.size_bytes_max

    def changed(self, difference: int) -> None:
        self.held += difference
        if difference < 0 and self._waiting:
            self._grant()

    def enqueue(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)

    def cancel(self, waiting: Waiting) -> None:
        """Nothing happens if it was granted."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            self._grant()  # the next may be smaller

    def goes_first(self, account: Account) -> bool:
        """Whether an account that asks now need not stand in line."""
        return not self._waiting or not (account.held or any(not one.account.held for one in self._waiting))

    def _first(self) -> Waiting:
        return next((one for one in self._waiting if not one.account.held), self._waiting[0])

    def _grant(self) -> None:
        if self._granting:  # somebody who got room has released some: the loop below goes on
            return
        self._granting = True
        try:
            while self._waiting and self.fits((first := self._first()).size):
                self._waiting.remove(first)
                first.account.hold(first.account.held + first.size)
                first.granted()
        finally:
            self._granting = False


class Account:
    """What one connection or channel holds of one share. `held` is what is counted."""

    __slots__ = ("held", "share")

    def __init__(self, share: Share) -> None:
        self.share, self.held = share, 0

    def take(self, size: int) -> bool:
        """Holds `size` more if there is room and nobody else has to get it first."""
        share = self.share
        if self.held + size > FREE_SIZE_BYTES:
            if not share.goes_first(self) or not share.fits(size):
                return False
            self.hold(self.held + size)
        return True

    def wait(self, size: int, granted: Callable[[], None]) -> Waiting | None:
        """Waits in line for `size`. When `granted` is called they are held. None: too many wait already."""
        share = self.share
        if share.waiting >= WAITING_MAX:
            share.refused += 1
            return None
        waiting = Waiting(self, size, granted)
        share.enqueue(waiting)
        return waiting

    def hold(self, size: int) -> None:
        """It holds this much now: of what was granted it has released some, or it got more than it asked for."""
        size = size if size > FREE_SIZE_BYTES else 0
        difference, self.held = size - self.held, size
        if difference:
            self.share.changed(difference)


class ByteBudget:
    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes_max = size_bytes_max
        requests = min(size_bytes_max // 8, REQUESTS_SIZE_BYTES_MAX)
        self.requests = Share("requests", requests)
        self.answers = Share("answers", size_bytes_max // 2 - requests)
        self.received = Share("received", size_bytes_max // 4)
        self.pushed = Share("pushed", size_bytes_max // 4)

    @property
    def shares(self) -> tuple[Share, ...]:
        return self.requests, self.answers, self.received, self.pushed

    def statistics(self) -> dict[str, dict[str, int]]:
        return {
            share.kind: {
                "size_bytes_max": share.size_bytes_max,
                "held_bytes": share.held,
                "waiting": share.waiting,
                "refused": share.refused,
            }
            for share in self.shares
        }
