"""Makes the answers of range reads in turns, and only as far as the peer's budget has room for them.

    asked ──► due ──► read ── small, or there is room ──► answered
               ▲        └── no room: what was read is dropped, the request waits in line for that many bytes
               └─── room ──────────────┘                  └── too long ──► BUSY

A range may have 8 MiB and come from the disk. Hundreds of them in one turn of the loop would delay heartbeats, and the
peer would lose its lanes. So one turn reads TURN_SIZE_BYTES; the other reads are due in the next one, in their order.

An answer is as large as its client allows while there is plenty of room, and smaller the less there is
(`part_for_one`). So readers of small batches are always answered, whatever others hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from avow.errors import AvowError, Busy
from avow.limits import MIB

if TYPE_CHECKING:
    from avow.server.byte_budget import Waiting
    from avow.server.http.listener import Listener
    from avow.server.http.request import HttpRequest, Piece

TURN_SIZE_BYTES: Final = 4 * MIB


class RangeAnswer(Struct, frozen=True, gc=False):
    body: bytes | Sequence[Piece]
    headers: bytes
    content_type: bytes

    @property
    def size(self) -> int:
        return len(self.body) if isinstance(self.body, bytes) else sum(map(len, self.body))


Make: TypeAlias = "Callable[[int], RangeAnswer]"  # the largest number of bytes of batches in it


class _Read:
    """It is the watcher of its request while it waits."""

    __slots__ = ("make", "request", "room", "turns", "waiting", "wanted")

    def __init__(self, turns: ReadTurns, request: HttpRequest, make: Make, wanted: int) -> None:
        self.turns, self.request, self.make, self.wanted = turns, request, make, wanted
        self.room = 0  # that was granted
        self.waiting: Waiting | None = None

    def gone(self) -> None:
        if self.waiting is not None:
            waiting, self.waiting = self.waiting, None
            self.request.connection.held.reads_waiting -= 1
            waiting.account.share.cancel(waiting)

    def expired(self) -> None:
        self.gone()
        self.turns.refuse(self.request)


class ReadTurns:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._share = listener.budget.answers
        self._due: deque[_Read] = deque()
        self._left = TURN_SIZE_BYTES  # in this turn of the loop
        self._scheduled = False

    def serve(self, request: HttpRequest, make: Make, *, wanted: int, timeout_s: float) -> None:
        listener = self._listener
        request.deadline = listener.now() + min(timeout_s, listener.patience.busy_s)
        read = _Read(self, request, make, wanted)
        request.watcher = read
        if self._left > 0 and not self._due:
            self._run(read)
        else:
            self._due.append(read)
        self._schedule()

    def refuse(self, request: HttpRequest) -> None:
        share = self._share
        share.refused += 1
        request.fail(
            Busy(
                f"answers that other clients have not read hold {share.held} of the {share.size_bytes_max} bytes that "
                "this peer has for them (setting memory_bytes_max); nothing was read. Try again, or try another peer"
            )
        )

    def _turn(self) -> None:
        self._scheduled, self._left = False, TURN_SIZE_BYTES
        while self._due and self._left > 0:
            self._run(self._due.popleft())
        if self._due:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._listener.soon(self._turn)

    def _run(self, read: _Read) -> None:
        request, held = read.request, read.request.connection.held
        held.promised = max(0, held.promised - read.room)  # it is counted as unread from here on
        if not request.waiting:
            return
        try:
            answer = read.make(read.room or self._share.part_for_one(read.wanted))
        except AvowError as error:
            request.fail(error)
            return
        except Exception:
            self._listener.crashed(request)
            return
        size = answer.size
        self._left -= size
        if read.room or held.answers.take(size):
            request.answer(200, answer.body, answer.headers, answer.content_type)
            return
        read.waiting = held.answers.wait(size, lambda: self._granted(read, size))
        if read.waiting is None:
            self.refuse(request)
        else:
            held.reads_waiting += 1

    def _granted(self, read: _Read, size: int) -> None:
        read.waiting, read.room = None, size
        held = read.request.connection.held
        held.reads_waiting -= 1
        held.promised += size
        self._due.append(read)
        self._schedule()
