"""Sends the writes of one two-phase lane to the lane's coordinator, in order.

The writes of one client to one lane take effect in the order they were sent. A writer (`avow.writer`) decides what to
send when; this module sends it over the connection to a peer and turns answers into steps. There is one exception: if a
peer accepts a batch after refusing the one before it, their order is reversed, and both are done.

Target: the coordinator that the last answer named. A change of coordinator takes effect when nothing is in flight.

Timeout: at the batch's deadline it is refused with the last error, or unknown if any attempt may have happened. The
caller gets that outcome at once; the batch keeps its place in the window until its answer arrives.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from avow.client.batches import Batch, ByteBudget, PendingBatches
from avow.client.descriptions import QueueInfo, queue_path
from avow.client.outcomes import Span, final, is_foreclosed, span_of
from avow.client.peer_connection import BATCH, FIRST_BATCH
from avow.client.pubsub_sender import PubSubSender
from avow.client.routing import step_after
from avow.client.timer import Timer
from avow.errors import NotEqual, UnknownQueue
from avow.wire.http import Answer, Lost
from avow.writer.backoff import NETWORK
from avow.writer.steps import Ready, Settings, Step, Verdict
from avow.writer.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from avow.client.batches import Sender, WriteBuffer
    from avow.client.cluster import Cluster
    from avow.client.peer_connection import PeerConnection

IN_FLIGHT_MAX: Final = 8
_SETTINGS: Final = Settings(window=IN_FLIGHT_MAX, pauses=NETWORK, ordered=True)


class LaneSender:
    """`wake` requests a call of `pump` at the end of this turn of the event loop. `seen` receives the done versions."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        queue: str,
        lane: int,
        coordinator: int,
        budget: ByteBudget,
        seen: dict[int, int],
        wake: Callable[[LaneSender], None],
    ) -> None:
        self._cluster, self._queue, self._lane = cluster, queue, lane
        self.pending = PendingBatches(budget=budget, timeout_s=cluster.timeout_s, wake=partial(wake, self))
        self._target = queue_path(queue, "messages") + b"?lane=%d" % lane
        self._preferred = coordinator
        self._peer: PeerConnection | None = None
        self._wanted: PeerConnection | None = None
        self._seen = seen
        self._writer: Writer[Batch] = Writer(_SETTINGS, rng=cluster.random, source=self.pending, aim=self._aim)
        self._timer = Timer(self._woken)

    # ------------------------------------------------------------------- sending

    def pump(self) -> None:
        """Send what may be sent now, and report verdicts to callers."""
        now = monotonic()
        ready = self._writer.drain(now)
        for batch in ready.send:
            self._send(batch, now)
        if ready.decided:
            self._report(ready)
        self._timer.set(ready.wake_at, now)

    def _aim(self, *, failed: bool) -> bool:
        if failed:
            self._peer = self._cluster.choose(preferred=self._preferred, after=self._peer)
        else:
            self._peer = self._wanted or self._cluster.choose(preferred=self._preferred)
        self._wanted = None
        return self._peer.number == self._preferred > 0

    def _send(self, batch: Batch, now: float) -> None:
        peer = self._peer
        assert peer is not None
        assert batch.record is not None
        headers = FIRST_BATCH
        if batch.tries > 1 or batch.sent_at != now or batch.older_ms:
            headers = BATCH + b"avow-age-ms: %d\r\n" % batch.age_ms(now)
        target = self._target if batch.expected is None else self._target + b"&expected=%d" % batch.expected
        peer.write(target, headers, batch.record, partial(self._answered, batch, peer))

    # ------------------------------------------------------------------- answers

    def _answered(self, batch: Batch, peer: PeerConnection, answer: Answer | Lost) -> None:
        found = span_of(answer)
        if isinstance(found, Span) and isinstance(answer, Answer):
            self._stored(batch, peer, answer, found)
        elif not isinstance(found, Span):
            self._fail(batch, peer, found)
        self.pump()

    def _stored(self, batch: Batch, peer: PeerConnection, answer: Answer, span: Span) -> None:
        if peer.suspect_until:
            peer.answered()
        if span.last_version > self._seen.get(self._lane, 0):
            self._seen[self._lane] = span.last_version
        batch.first_version = span.first_version
        self._writer.answered(batch, Step.DONE, 0.0)
        coordinator = answer.number(b"avow-coordinator")
        if coordinator and coordinator != peer.number:
            self._prefer(coordinator)

    def _prefer(self, number: int) -> None:
        self._preferred = number
        peer = self._cluster.by_number(number)
        if peer is None:
            self._cluster.refresh_soon()
        elif peer is not self._peer and peer.suspect_until <= monotonic():
            self._wanted = peer
            self._writer.redirect()

    def _fail(self, batch: Batch, peer: PeerConnection, answer: Answer | Lost) -> None:
        self._cluster.note(peer, answer)
        step, error = step_after(answer)
        if isinstance(error, NotEqual) and batch.expected is not None:
            error.expected = batch.expected
            step = Step.ENDED if is_foreclosed(error) else step
        if isinstance(error, UnknownQueue):
            # A peer that lags may not know a new queue yet: UnknownQueue counts when every peer answers it.
            batch.unknown_count += 1
            if batch.unknown_count >= len(self._cluster.peers):
                step = Step.REFUSED
        if not batch.finished and (step is Step.ELSEWHERE or step is Step.UNCERTAIN):
            hint = self._cluster.follow_hint(error)
            if hint or not self._writer.failing:
                self._preferred = hint
        self._writer.answered(batch, step, monotonic(), error)

    def _report(self, ready: Ready[Batch]) -> None:
        for one in ready.decided:
            batch = one.write
            if one.verdict is Verdict.DONE:
                batch.done(self._queue, self._lane, batch.first_version)
            else:
                error = batch.error or batch.never_sent(self._cluster.timeout_s)
                batch.fail(final(error, maybe=batch.maybe, write_id=batch.write_id))
            self.pending.release(batch)

    # ---------------------------------------------------------------------- time

    def _woken(self) -> None:
        self._writer.tick(monotonic())
        self.pump()

    def close(self) -> None:
        self._writer.close()
        self._report(self._writer.drain(monotonic()))
        self._timer.cancel()

    @property
    def coordinator(self) -> int:
        """The last known coordinator of the lane; 0 if unknown."""
        return self._preferred

    def statistics(self) -> dict[str, int]:
        return {"lane": self._lane, "in_flight": self._writer.in_flight_count, "waiting": len(self.pending)}


def open_senders(cluster: Cluster, info: QueueInfo, buffer: WriteBuffer) -> Sequence[Sender]:
    """The senders of a queue's lanes, in their order; of a pub-sub queue, the one that it has."""
    if info.pubsub:
        return (PubSubSender(cluster, queue=buffer.queue, budget=buffer.budget, seen=buffer.seen, wake=buffer.wake),)
    return tuple(
        LaneSender(
            cluster,
            queue=buffer.queue,
            lane=lane.lane,
            coordinator=lane.coordinator or 0,
            budget=buffer.budget,
            seen=buffer.seen,
            wake=buffer.wake,
        )
        for lane in sorted(info.lanes, key=lambda lane: lane.lane)
    )
