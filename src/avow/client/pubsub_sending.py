"""The writes of one pub-sub queue: to the lane of whichever peer takes them, each in one lane only.

Every peer writes its own lane, so a client may write through any peer, and the death of one stops nobody. What must not
happen is one write in two lanes: write ids are remembered per lane. So a batch is bound to a lane when it leaves, and
it may go to another only when it is known not to be, and never to be, in that one:

    answer                          then
    done                            done
    LANE_ENDED                      definite: not in that lane. Write it to another
    a definite refusal              the attempt did not happen. If no earlier one may have: write it to another
    no answer, or UNKNOWN           it is `maybe` in that lane. Repeat it there if the peer can be reached; else ask any
                                    other peer what became of it, until that is known: done or LANE_ENDED

While such batches are being settled, new writes go through another peer at once. Settling is the work of one task per
batch; there are at most as many as batches may be on their way. At the deadline what is still not known is Unknown,
with the lane to ask about.

Order: as sent, within a lane, unless a repeat was needed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from avow.client.batching import Batch, Pending, Room
from avow.client.http import Answer, Lost
from avow.client.links import BATCH
from avow.client.metadata import queue_path, read_queue
from avow.client.outcomes import Span, final, span_of
from avow.client.pubsub_settling import ASK_S, what_became
from avow.client.routing import Backoff, Step, step_after
from avow.errors import AvowError, InvalidRequest, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from avow.client.cluster import Cluster
    from avow.client.links import Link

IN_FLIGHT_MAX: Final = 8


class Binding(Struct, frozen=True):
    """A peer and the lane it writes to, which had reached `end` when it was asked."""

    link: Link
    lane: int
    end: int = 0


class PubSubSender:
    def __init__(
        self, cluster: Cluster, *, queue: str, room: Room, seen: dict[int, int], wake: Callable[[PubSubSender], None]
    ) -> None:
        self._cluster, self._queue = cluster, queue
        self.pending = Pending(room=room, timeout_s=cluster.timeout_s, wake=partial(wake, self))
        self._target = queue_path(queue, "messages") + b"?lane=%d"
        self._binding: Binding | None = None
        self._finding: asyncio.Task[None] | None = None
        self._last: Link | None = None
        self._misses_count = 0  # bindings in a row that did not hold
        self._backoff = Backoff(cluster.random)
        self._flight: dict[int, Batch] = {}  # by batch number
        self._settling: dict[int, Batch] = {}
        self._seen = seen
        self._closed = False

    # ------------------------------------------------------------------- sending

    def pump(self) -> None:
        while len(self._flight) < IN_FLIGHT_MAX:
            binding = self._binding
            if binding is None:
                self._find()
                break
            batch = self.pending.take()
            if batch is None:
                break
            self._send(batch, binding)
        if self._flight or self._settling or self.pending:
            self._cluster.watch(self._sweep)

    def _send(self, batch: Batch, binding: Binding) -> None:
        assert batch.record is not None
        if batch.expected is not None:
            self._give_up(batch, InvalidRequest("a pub-sub queue has no single end to expect; nothing was stored"))
            return
        batch.bound = binding.lane
        batch.since = max(binding.end, self._seen.get(binding.lane, 0))
        batch.sent_at = batch.sent_at or monotonic()
        self._flight[batch.number] = batch
        target = self._target % binding.lane
        binding.link.write(target, BATCH, batch.record, partial(self._answered, batch, binding))

    # ----------------------------------------------------------- whom to write to

    def _find(self) -> None:
        if self._finding is None and self.pending and not self._closed:
            self._finding = self._cluster.spawn(self._find_binding())

    async def _find_binding(self) -> None:
        """Ask one peer after another for its open lane, until one has one and can be reached."""
        target = queue_path(self._queue)
        unknown_count = 0
        try:
            if self._misses_count > len(self._cluster.links):
                await asyncio.sleep(self._backoff.next_s())
            while self.pending and not self._closed:
                link = self._last = self._cluster.choose(after=self._last)
                answer = await link.call(b"GET", target, timeout_s=ASK_S)
                self._cluster.note(link, answer)
                found, error = open_lane(answer)
                if found is not None:
                    self._binding = Binding(link, *found)
                    return
                self._refused(error)
                unknown_count += isinstance(error, UnknownQueue)
                if isinstance(error, UnknownQueue) and unknown_count >= len(self._cluster.links):
                    self._refuse_all(error)
                await asyncio.sleep(self._backoff.next_s())
        finally:
            self._finding = None
            if self._binding is not None:
                self.pump()

    def _refused(self, error: AvowError | None) -> None:
        for batch in self.pending.waiting:
            if error is not None and error.definite:
                batch.error = error

    def _refuse_all(self, error: AvowError) -> None:
        for batch in self.pending.expired(float("inf")):
            self._give_up(batch, error)

    def _unbind(self, binding: Binding) -> None:
        if self._binding is binding:
            self._binding, self._last = None, binding.link
            self._misses_count += 1

    # ------------------------------------------------------------------- answers

    def _answered(self, batch: Batch, binding: Binding, answer: Answer | Lost) -> None:
        del self._flight[batch.number]
        found = span_of(answer)
        if isinstance(found, Span):
            self._finish(batch, found)
        else:
            self._fail(batch, binding, found)
        self.pump()

    def _finish(self, batch: Batch, span: Span) -> None:
        if batch.settled:
            return
        self._misses_count = 0
        self._backoff.reset()
        self._seen[span.lane] = max(span.last_version, self._seen.get(span.lane, 0))
        batch.done(self._queue, span.lane, span.first_version)
        self.pending.settle(batch)

    def _fail(self, batch: Batch, binding: Binding, answer: Answer | Lost) -> None:
        self._cluster.note(binding.link, answer)
        step, error = step_after(answer)
        batch.error = error
        if step is not Step.REFUSED:
            self._unbind(binding)
        if batch.settled:
            return
        if step is Step.UNCERTAIN:
            batch.maybe = True
            self._settling[batch.number] = batch
            self._cluster.spawn(self._settle(batch, binding))
        elif step is Step.ELSEWHERE:
            self.pending.put_back([batch])
        else:
            self._give_up(batch, error)

    def _give_up(self, batch: Batch, error: AvowError | None = None) -> None:
        said = error or batch.error or batch.never_sent(self._cluster.timeout_s)
        lane = batch.bound if batch.maybe else None
        batch.fail(final(said, maybe=batch.maybe, write_id=batch.write_id, lane=lane))
        self.pending.settle(batch)

    # ------------------------------------------------------------------ settling

    async def _settle(self, batch: Batch, binding: Binding) -> None:
        """Find out what became of a batch that may be in the lane it was bound to."""
        try:
            found = await what_became(self._cluster, batch, queue=self._queue, lane=binding.lane, owner=binding.link)
            if isinstance(found, Span):
                self._finish(batch, found)
            elif found is not None:
                batch.maybe, batch.bound = False, None
                self.pending.put_back([batch])
                self.pump()
        finally:
            self._settling.pop(batch.number, None)
            if not batch.settled and batch.maybe:
                self._give_up(batch)

    # ---------------------------------------------------------------------- time

    def _sweep(self, now: float) -> bool:
        for batch in self.pending.expired(now):
            self._give_up(batch)
        for batch in (*self._flight.values(), *self._settling.values()):
            if batch.deadline <= now and not batch.settled:
                batch.maybe = True
                self._give_up(batch)
        if self._binding is None:
            self._find()
        return bool(self._flight or self._settling or self.pending)

    def close(self) -> None:
        self._closed = True
        for batch in self.pending.expired(float("inf")):
            self._give_up(batch)
        for batch in (*self._flight.values(), *self._settling.values()):
            if not batch.settled:
                batch.maybe = True
                self._give_up(batch)

    def statistics(self) -> dict[str, int]:
        return {"in_flight": len(self._flight), "settling": len(self._settling), "waiting": len(self.pending)}


def open_lane(answer: Answer | Lost) -> tuple[tuple[int, int] | None, AvowError | None]:
    """The lane the peer that answered writes to, and its end; or why there is none, as far as it says."""
    _, error = step_after(answer)
    if error is not None or isinstance(answer, Lost):
        return None, error
    try:
        queue = read_queue(answer.body)
    except AvowError as malformed:
        return None, malformed
    if queue.open_lane is None:
        return None, None
    ends = [lane.end for lane in queue.lanes if lane.lane == queue.open_lane]
    return (queue.open_lane, max(ends, default=0)), None
