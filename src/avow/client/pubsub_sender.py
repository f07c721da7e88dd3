"""Sends the writes of one pub-sub queue to the lane of any peer that accepts them, each write to one lane only.

Every peer writes its own lane, so a client may write through any peer, and writes continue when a peer dies. A write
must not be stored in two lanes, and write ids are remembered per lane. So a batch is bound to a lane when it is sent,
and may go to another lane only when it is not, and never will be, in the first:

    answer                          then
    done                            done
    LANE_ENDED                      definite: not in that lane. Write it to another
    a definite refusal              the attempt did not happen. If no earlier one may have: write it to another
    no answer, or UNKNOWN           it is `maybe` in that lane. Repeat it there if the peer can be reached; otherwise
                                    ask any other peer until its outcome is known: done or LANE_ENDED

A writer (`avow.writer`) enforces this; this module finds open lanes, sends batches and looks up outcomes. Meanwhile new
writes go through another peer at once. A batch without a known outcome at its deadline fails with Unknown, which names
the lane to query.

Order: as sent, within a lane, unless a batch had to be repeated.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from avow.client.batches import Batch, ByteBudget, PendingBatches
from avow.client.descriptions import queue_path, read_queue
from avow.client.outcomes import Span, final, span_of
from avow.client.peer_connection import BATCH, FIRST_BATCH
from avow.client.pubsub_unresolved import ASK_S, OutcomeQuery
from avow.client.routing import Backoff, step_after
from avow.client.timer import Timer
from avow.errors import AvowError, InvalidRequest, UnknownQueue
from avow.wire.http import Answer, Lost
from avow.writer.backoff import NETWORK
from avow.writer.steps import Request, Settings, Step, Verdict
from avow.writer.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from avow.client.cluster import Cluster
    from avow.client.peer_connection import PeerConnection

IN_FLIGHT_MAX: Final = 8
_WRITES: Final = Settings(window=IN_FLIGHT_MAX, pauses=NETWORK, in_lanes=True)
_QUESTION: Final = Settings(window=1, pauses=NETWORK)


class Binding(Struct, frozen=True):
    """A peer and the lane it writes to, which had reached `end` when the peer was asked."""

    peer: PeerConnection
    lane: int
    end: int = 0


class PubSubSender:
    """`wake` requests a call of `pump` at the end of this turn of the event loop. `seen` receives the done versions."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        queue: str,
        budget: ByteBudget,
        seen: dict[int, int],
        wake: Callable[[PubSubSender], None],
    ) -> None:
        self._cluster, self._queue = cluster, queue
        self.pending = PendingBatches(budget=budget, timeout_s=cluster.timeout_s, wake=partial(wake, self))
        self._target = queue_path(queue, "messages") + b"?lane="  # a name may hold a percent sign
        self._writer: Writer[Batch] = Writer(_WRITES, rng=cluster.random, source=self.pending)
        self._timer = Timer(self._woken)
        self._queries: dict[int, OutcomeQuery] = {}  # by the number of a batch that may be in the lane it is bound to
        self._binding: Binding | None = None
        self._finding: asyncio.Task[None] | None = None
        self._last: PeerConnection | None = None
        self._misses_count = 0  # consecutive bindings that failed
        self._backoff = Backoff(cluster.random)  # between those
        self._seen = seen
        self._closed = False

    # ------------------------------------------------------------------- sending

    def pump(self) -> None:
        """Send what may be sent now, and report verdicts to callers."""
        now = monotonic()
        ready = self._writer.drain(now)
        for batch in ready.send:
            self._send(batch, now)
        for one in ready.decided:
            self._report(one.write, one.verdict)
        self._timer.set(ready.wake_at, now)
        if self._binding is None:
            self._find()
        if ready.send or self.pending:
            self._cluster.watch(self._sweep)

    def _send(self, batch: Batch, now: float) -> None:
        binding = self._binding
        if batch.maybe:
            self._cluster.spawn(self._query_outcome(batch, self._queries[batch.number]))
        elif batch.expected is not None:
            error = InvalidRequest(
                "`expected` needs a two-phase queue: a pub-sub queue has one end per lane; nothing was stored"
            )
            self._writer.answered(batch, Step.REFUSED, now, error)
            self._timer.set(now, now)
        else:
            assert binding is not None, "new writes are sent while there is one"
            assert batch.record is not None
            batch.since = max(binding.end, self._seen.get(binding.lane, 0))
            reply = partial(self._answered, batch, binding)
            headers = BATCH + b"avow-age-ms: %d\r\n" % batch.older_ms if batch.older_ms else FIRST_BATCH
            binding.peer.write(self._target + b"%d" % binding.lane, headers, batch.record, reply)

    # ------------------------------------------------------- choosing a lane

    def _find(self) -> None:
        if self._finding is None and self.pending and not self._closed:
            self._finding = self._cluster.spawn(self._find_binding())

    async def _find_binding(self) -> None:
        """Ask one peer after another for its open lane, until one answers with a lane."""
        now = monotonic()
        tired = self._misses_count > len(self._cluster.peers)
        question = Request(due=now + self._backoff.next_s() if tired else 0.0)
        finder: Writer[Request] = Writer(_QUESTION, rng=self._cluster.random)
        finder.submit(question, now)
        unknown_count = 0
        try:
            while self.pending and not self._closed:
                now = monotonic()
                ready = finder.drain(now)
                if ready.decided:
                    return
                if not ready.send:
                    await asyncio.sleep(ready.wake_at - now)
                    continue
                error = await self._ask_for_lane()
                unknown_count += isinstance(error, UnknownQueue)
                if isinstance(error, UnknownQueue) and unknown_count >= len(self._cluster.peers):
                    self._writer.refuse_waiting(error)
                    self.pump()
                finder.answered(question, Step.ELSEWHERE if self._binding is None else Step.DONE, monotonic())
        finally:
            self._finding = None
            if self._binding is not None:
                self.pump()

    async def _ask_for_lane(self) -> AvowError | None:
        peer = self._last = self._cluster.choose(after=self._last)
        answer = await peer.call(b"GET", queue_path(self._queue), timeout_s=ASK_S)
        self._cluster.note(peer, answer)
        found, error = open_lane(answer)
        if found is not None:
            self._binding = Binding(peer, *found)
            self._writer.bind(self._binding.lane)
            return None
        for batch in self.pending.waiting:
            if error is not None and error.definite:
                batch.error = error
        return error

    def _unbind(self, binding: Binding) -> None:
        if self._binding is binding:
            self._binding, self._last = None, binding.peer
            self._writer.bind(None)
            self._misses_count += 1

    # ------------------------------------------------------------------- answers

    def _answered(self, batch: Batch, binding: Binding, answer: Answer | Lost) -> None:
        found = span_of(answer)
        if isinstance(found, Span):
            self._stored(batch, found)
        else:
            self._fail(batch, binding, found)
        self.pump()

    def _stored(self, batch: Batch, span: Span) -> None:
        if not batch.finished:
            self._misses_count = 0
            self._backoff.reset()
            self._seen[span.lane] = max(span.last_version, self._seen.get(span.lane, 0))
            batch.bound, batch.first_version = span.lane, span.first_version
        self._writer.answered(batch, Step.DONE, monotonic())

    def _fail(self, batch: Batch, binding: Binding, answer: Answer | Lost) -> None:
        self._cluster.note(binding.peer, answer)
        step, error = step_after(answer)
        if step is not Step.REFUSED:
            self._unbind(binding)
        if step is Step.UNCERTAIN and not batch.finished:
            self._queries[batch.number] = OutcomeQuery(
                self._cluster, queue=self._queue, lane=binding.lane, owner=binding.peer
            )
        self._writer.answered(batch, step, monotonic(), error)

    async def _query_outcome(self, batch: Batch, query: OutcomeQuery) -> None:
        """One attempt to find the outcome of a batch that may be in the lane it was bound to."""
        found = await query.attempt(batch)
        if found.span is not None:
            self._stored(batch, found.span)
        else:
            self._writer.answered(batch, found.step, monotonic(), found.error)
        if not batch.maybe:
            self._queries.pop(batch.number, None)
        self.pump()

    def _report(self, batch: Batch, verdict: Verdict) -> None:
        self._queries.pop(batch.number, None)
        if verdict is Verdict.DONE:
            batch.done(self._queue, batch.bound or 0, batch.first_version)
        else:
            error = batch.error or batch.never_sent(self._cluster.timeout_s)
            lane = batch.bound if batch.maybe else None
            batch.fail(final(error, maybe=batch.maybe, write_id=batch.write_id, lane=lane))
        self.pending.release(batch)

    # ---------------------------------------------------------------------- time

    def _woken(self) -> None:
        self._writer.tick(monotonic())
        self.pump()

    def _sweep(self, now: float) -> bool:
        """Called periodically while writes are pending: checks deadlines."""
        self._writer.tick(now)
        self.pump()
        return not self._writer.idle

    @property
    def coordinator(self) -> int:
        """A pub-sub queue has none."""
        return 0

    def close(self) -> None:
        self._closed = True
        self._writer.close()
        for one in self._writer.drain(monotonic()).decided:
            self._report(one.write, one.verdict)
        self._timer.cancel()

    def statistics(self) -> dict[str, int]:
        unresolved, waiting = self._writer.unclear_count, len(self.pending)
        return {"in_flight": self._writer.in_flight_count, "unresolved": unresolved, "waiting": waiting}


def open_lane(answer: Answer | Lost) -> tuple[tuple[int, int] | None, AvowError | None]:
    """The lane that the answering peer writes to, and its end; or None and the error, if there is one."""
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
