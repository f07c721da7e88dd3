"""The bytes that one connection holds: bodies of requests, and answers that its client has not read.

body       room for all of it is taken when its head has arrived, and given back when the request is answered. While
           there is no room the socket is not read. A body without a length may turn out to be as large as the
           setting allows, so once it is no longer small it takes room for that
answers    what waits here and in the socket. A read asks before it makes a large answer (`range_reads`); what the
           client has not read is counted again whenever some of it may have left
"""

from __future__ import annotations

from collections.abc import Callable

from avow.server.byte_budget import FREE_SIZE_BYTES, ByteBudget, Waiting


class HeldBytes:
    __slots__ = (
        "_moved_at",
        "_unsent",
        "answers",
        "body",
        "promised",
        "reads_waiting",
        "requests",
        "wait_until",
        "waiting",
    )

    def __init__(self, budget: ByteBudget) -> None:
        self.requests, self.answers = budget.requests.open(), budget.answers.open()
        self.body = 0  # room taken for the body that is being received
        self.waiting: Waiting | None = None  # for that room
        self.wait_until = 0.0
        self.promised = 0  # room for answers that are not made yet
        self.reads_waiting = 0  # for room; at most one, or a client with many reads would take the places of others
        self._unsent, self._moved_at = 0, 0.0

    # ------------------------------------------------------------------ bodies

    def take_body(self, size: int) -> bool:
        if not self.requests.take(size):
            return False
        self.body = size
        return True

    def wait_for_body(self, size: int, granted: Callable[[], None], *, until: float) -> bool:
        """False: too many others wait."""

        def taken() -> None:
            self.waiting, self.body = None, size
            granted()

        self.waiting, self.wait_until = self.requests.wait(size, taken), until
        return self.waiting is not None

    def stop_waiting(self) -> None:
        if self.waiting is not None:
            waiting, self.waiting = self.waiting, None
            waiting.account.share.cancel(waiting)

    def body_complete(self, size: int) -> int:
        """What the request holds until its answer. A body that waited for room arrived in one chunk with its head."""
        self.stop_waiting()
        size = size if size > FREE_SIZE_BYTES else 0
        self.requests.hold(self.requests.held - self.body + size)
        self.body = 0
        return size

    def release_body(self, size: int) -> None:
        self.requests.hold(self.requests.held - size)

    # ------------------------------------------------------------------ answers

    @property
    def takes_requests(self) -> bool:
        """False: its earlier answers need all the room that it may have now."""
        return not self.reads_waiting and not (self.answers.held and self.answers.share.tight)

    def unread(self, size: int) -> None:
        """`size` bytes of answers wait here or in the socket."""
        self.answers.hold(size + self.promised)

    def stalled_s(self, now: float, unsent: int) -> float:
        """How long the number of bytes in the socket has not changed."""
        if not unsent or unsent != self._unsent:
            self._unsent, self._moved_at = unsent, now
        return now - self._moved_at

    def close(self) -> None:
        self.stop_waiting()
        self.body = self.promised = 0
        self.requests.hold(0)
        self.answers.hold(0)
