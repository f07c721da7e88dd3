"""Finds the outcome of a batch that may be in one lane of a pub-sub queue; only if it is not may it go to another.

There are two sources. The lane's owner, if it can be reached: the batch is repeated there, and is either known or
stored now. Or any other peer, once the lane has ended: then the batch is in it or never will be. An attempt asks both;
a writer decides when to make the next attempt.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from avow.client.descriptions import queue_path
from avow.client.outcomes import Span, span_of
from avow.client.peer_connection import BATCH
from avow.client.routing import choose, step_after
from avow.errors import AvowError, LaneEnded, UnknownMessage
from avow.wire.http import Answer, Lost
from avow.writer.backoff import NETWORK
from avow.writer.steps import Settings, Step
from avow.writer.writer import Writer

if TYPE_CHECKING:
    from avow.client.batches import Batch
    from avow.client.cluster import Cluster
    from avow.client.peer_connection import PeerConnection

ASK_S: Final = 2.0
_REPEAT_S: Final = 0.5  # short, because the owner has just failed to answer: another peer may know the outcome
_ONE_BATCH: Final = Settings(window=1, pauses=NETWORK)


class QueryResult(Struct, frozen=True):
    """DONE with a span, ENDED, or ELSEWHERE: the outcome is still unknown."""

    step: Step
    error: AvowError | None = None
    span: Span | None = None


class OutcomeQuery:
    """Looks up one batch in one lane of `queue`. `owner` is the lane's peer, None if it is not known."""

    def __init__(self, cluster: Cluster, *, queue: str, lane: int, owner: PeerConnection | None) -> None:
        self._cluster, self._queue, self._lane, self._owner = cluster, queue, lane, owner
        self._asked = owner

    async def attempt(self, batch: Batch) -> QueryResult:
        """Repeat the batch in its lane, and ask another peer if that gives no outcome."""
        found = _judged(await self._repeat(batch))
        others = [peer for peer in self._cluster.peers if peer is not self._owner]
        if found.step is Step.ELSEWHERE and others and not batch.finished:
            self._asked = choose(others, after=self._asked, now=monotonic())
            asked = _judged(await self._ask(batch, self._asked))
            found = asked if asked.error is not None or asked.span is not None else found
        return found

    async def _repeat(self, batch: Batch) -> Answer | Lost | None:
        owner = self._owner
        if owner is None or owner.suspect_until > monotonic() or batch.record is None:
            return None
        headers = BATCH + b"avow-age-ms: %d\r\n" % batch.age_ms(monotonic())
        target = queue_path(self._queue, "messages") + b"?lane=%d" % self._lane
        return await owner.call(b"POST", target, headers=headers, body=batch.record, timeout_s=_REPEAT_S)

    async def _ask(self, batch: Batch, peer: PeerConnection) -> Answer | Lost | None:
        writes = queue_path(self._queue, "writes", batch.write_id.hex())
        answer = await peer.call(b"GET", writes + b"?lane=%d&since=%d" % (self._lane, batch.since), timeout_s=ASK_S)
        self._cluster.note(peer, answer)
        if isinstance(step_after(answer)[1], UnknownMessage):
            return None  # that peer has not seen it, which proves nothing about the lane
        return answer


def _judged(answer: Answer | Lost | None) -> QueryResult:
    if answer is None:
        return QueryResult(Step.ELSEWHERE)
    span = span_of(answer)
    if isinstance(span, Span):
        return QueryResult(Step.DONE, span=span)
    error = step_after(span)[1]
    return QueryResult(Step.ENDED if isinstance(error, LaneEnded) else Step.ELSEWHERE, error)


async def resolve(
    cluster: Cluster, batch: Batch, *, queue: str, lane: int, owner: PeerConnection | None
) -> Span | LaneEnded | None:
    """The batch's versions in the lane; LaneEnded if it is not and never will be there; None at the deadline."""
    query, found = OutcomeQuery(cluster, queue=queue, lane=lane, owner=owner), QueryResult(Step.ELSEWHERE)
    writer: Writer[Batch] = Writer(_ONE_BATCH, rng=cluster.random)
    writer.submit(batch, monotonic())
    while True:
        now = monotonic()
        writer.tick(now)
        ready = writer.drain(now)
        if ready.decided:
            return found.span or (batch.error if isinstance(batch.error, LaneEnded) else None)
        if ready.send:
            found = await query.attempt(batch)
            writer.answered(batch, found.step, monotonic(), found.error)
        else:
            await asyncio.sleep(ready.wake_at - now)
