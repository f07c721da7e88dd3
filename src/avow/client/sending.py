"""The writes of one two-phase lane: pipelined while all is well, one by one after a failure.

What this promises: the writes of one client to one lane are applied in the order they were sent. While nothing fails
that is what one connection to one peer gives. When an attempt fails in a way that is worth repeating, nothing new is
sent until everything behind it has been answered; then what failed is sent again in its order, the first alone
(probing) and, once that one is done, the rest. Every attempt of a batch has the same write id, so repeating never
doubles it. The one case left: a batch that a peer took while it refused the one before it. Their order is then the
other way round, and both are done.

Where: to the coordinator, as the last answer named it. A change of coordinator is followed when nothing is on its way,
because two batches on two roads could overtake each other.

How long: until the batch's deadline. Then it is refused with what was last said, or unknown if any attempt may have
happened. A batch that is past its deadline is settled for its caller at once, but its answer is still waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from avow.client.batching import Batch, Pending, Room
from avow.client.http import Answer, Lost
from avow.client.links import BATCH
from avow.client.metadata import queue_path
from avow.client.outcomes import Span, final, span_of
from avow.client.routing import Backoff, Step, step_after
from avow.errors import AvowError, NotEqual, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from avow.client.cluster import Cluster
    from avow.client.links import Link

IN_FLIGHT_MAX: Final = 8


class LaneSender:
    """`wake` asks for a call of `pump` at the end of this turn of the event loop. `seen` is told the versions done."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        queue: str,
        lane: int,
        coordinator: int,
        room: Room,
        seen: dict[int, int],
        wake: Callable[[LaneSender], None],
    ) -> None:
        self._cluster, self._queue, self._lane = cluster, queue, lane
        self.pending = Pending(room=room, timeout_s=cluster.timeout_s, wake=partial(wake, self))
        self._target = queue_path(queue, "messages") + b"?lane=%d" % lane
        self._flight: deque[Batch] = deque()
        self._failed: list[Batch] = []
        self._preferred = coordinator
        self._link: Link | None = None
        self._wanted: Link | None = None
        self._probing = False
        self._seen = seen
        self._backoff = Backoff(cluster.random)
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------- sending

    def pump(self) -> None:
        """Send what may be sent now."""
        if self._failed or self._timer is not None:
            return
        limit = 1 if self._probing else IN_FLIGHT_MAX
        while len(self._flight) < limit and self._aim():
            batch = self.pending.take()
            if batch is None:
                break
            self._send(batch)
        if self._flight or self.pending:
            self._cluster.watch(self._sweep)

    def _aim(self) -> bool:
        """Whether there is a peer to send to now; a new one only when nothing is on its way to another."""
        if self._link is not None and self._wanted is None:
            return True
        if self._flight:
            return False
        self._link = self._wanted or self._cluster.choose(preferred=self._preferred)
        self._wanted = None
        return True

    def _send(self, batch: Batch) -> None:
        link, now = self._link, monotonic()
        assert link is not None
        assert batch.record is not None
        headers = BATCH
        if batch.sent_at:
            headers = BATCH + b"avow-age-ms: %d\r\n" % batch.age_ms(now)
        else:
            batch.sent_at = now
        target = self._target if batch.expected is None else self._target + b"&expected=%d" % batch.expected
        self._flight.append(batch)
        link.write(target, headers, batch.record, partial(self._answered, batch, link))

    # ------------------------------------------------------------------- answers

    def _answered(self, batch: Batch, link: Link, answer: Answer | Lost) -> None:
        self._flight.remove(batch)
        found = span_of(answer)
        if isinstance(found, Span) and isinstance(answer, Answer):
            self._finish(batch, link, answer, found)
        elif not isinstance(found, Span):
            self._fail(batch, link, found)
        if not self._failed:
            self.pump()
        elif not self._flight:
            self._start_over()

    def _finish(self, batch: Batch, link: Link, answer: Answer, span: Span) -> None:
        self._probing = False
        self._backoff.reset()
        link.answered()
        if span.last_version > self._seen.get(self._lane, 0):
            self._seen[self._lane] = span.last_version
        if not batch.settled:
            batch.done(self._queue, self._lane, span.first_version)
            self.pending.settle(batch)
        coordinator = answer.number(b"avow-coordinator")
        if coordinator and coordinator != link.number:
            self._prefer(coordinator)

    def _prefer(self, number: int) -> None:
        self._preferred = number
        link = self._cluster.by_number(number)
        if link is None:
            self._cluster.refresh_soon()
        elif link is not self._link and link.suspect_until <= monotonic():
            self._wanted = link

    def _fail(self, batch: Batch, link: Link, answer: Answer | Lost) -> None:
        self._cluster.note(link, answer)
        step, error = step_after(answer)
        if batch.settled:
            return
        batch.maybe = batch.maybe or step is Step.UNCERTAIN
        batch.error = error
        if isinstance(error, NotEqual) and batch.expected is not None:
            error.expected = batch.expected
        if isinstance(error, UnknownQueue):
            # A peer that has not heard of a new queue yet says so too: it counts when every peer says it.
            batch.unknown_count += 1
            if batch.unknown_count >= len(self._cluster.links):
                step = Step.REFUSED
        if step is Step.REFUSED:
            self._give_up(batch)
            return
        hint = self._cluster.follow_hint(error)
        if hint or not self._failed:
            self._preferred = hint
        self._failed.append(batch)

    def _give_up(self, batch: Batch) -> None:
        error: AvowError = batch.error or batch.never_sent(self._cluster.timeout_s)
        batch.fail(final(error, maybe=batch.maybe, write_id=batch.write_id))
        self.pending.settle(batch)

    def _start_over(self) -> None:
        """Everything on its way has been answered: send what failed again, elsewhere, after a pause."""
        failed, self._failed = self._failed, []
        self.pending.put_back(failed)
        self._link = self._cluster.choose(preferred=self._preferred, after=self._link)
        self._wanted = None
        self._probing = True
        pause = self._backoff.next_s(named=self._link.number == self._preferred > 0)
        self._timer = asyncio.get_running_loop().call_later(pause, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.pump()

    # ---------------------------------------------------------------------- time

    def _sweep(self, now: float) -> bool:
        for batch in self.pending.expired(now):
            self._give_up(batch)
        for batch in (*self._flight, *self._failed):
            if batch.deadline <= now and not batch.settled:
                batch.maybe = batch.maybe or batch in self._flight
                self._give_up(batch)
        self._failed = [batch for batch in self._failed if not batch.settled]
        return bool(self._flight or self._failed or self.pending)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for batch in self.pending.expired(float("inf")):
            self._give_up(batch)
        for batch in (*self._flight, *self._failed):
            if not batch.settled:
                batch.maybe = batch.maybe or batch in self._flight
                self._give_up(batch)

    @property
    def coordinator(self) -> int:
        """The peer that coordinates the lane, as last heard; 0 if nobody said."""
        return self._preferred

    def statistics(self) -> dict[str, int]:
        return {"lane": self._lane, "in_flight": len(self._flight), "waiting": len(self.pending)}
