"""What became of a batch that may be in one lane of a pub-sub queue, and may go to another only if it is not.

Two can tell. The lane's owner, if it can be reached: the batch is simply repeated there, and either was known or is
stored now. And any other peer, once the lane has ended: then the batch is in it, or never will be. Until one of them
says so, both are asked again, with pauses that grow.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from avow.client.http import Answer, Lost
from avow.client.links import BATCH
from avow.client.metadata import queue_path
from avow.client.outcomes import Span, span_of
from avow.client.routing import Backoff, choose, step_after
from avow.errors import LaneEnded, UnknownMessage

if TYPE_CHECKING:
    from avow.client.batching import Batch
    from avow.client.cluster import Cluster
    from avow.client.links import Link

ASK_S: Final = 2.0
_REPEAT_S: Final = 0.5  # the peer has just been silent: the others may know more by now


async def what_became(
    cluster: Cluster, batch: Batch, *, queue: str, lane: int, owner: Link | None
) -> Span | LaneEnded | None:
    """Where it is in the lane; that it is not and never will be; or None when its time is over, or nobody waits."""
    backoff, asked = Backoff(cluster.random), owner
    while not batch.settled and monotonic() < batch.deadline:
        found = _judged(batch, await _repeat(batch, queue=queue, lane=lane, owner=owner))
        others = [link for link in cluster.links if link is not owner]
        if found is None and others and not batch.settled:
            asked = choose(others, after=asked, now=monotonic())
            found = _judged(batch, await _ask(cluster, batch, queue=queue, lane=lane, link=asked))
        if found is not None:
            return None if batch.settled else found
        await asyncio.sleep(backoff.next_s())
    return None


def _judged(batch: Batch, answer: Answer | Lost | None) -> Span | LaneEnded | None:
    if answer is None or batch.settled:
        return None
    found = span_of(answer)
    if isinstance(found, Span):
        return found
    batch.error = step_after(found)[1]
    return batch.error if isinstance(batch.error, LaneEnded) else None


async def _repeat(batch: Batch, *, queue: str, lane: int, owner: Link | None) -> Answer | Lost | None:
    if owner is None or owner.suspect_until > monotonic() or batch.record is None:
        return None
    headers = BATCH + b"avow-age-ms: %d\r\n" % batch.age_ms(monotonic())
    target = queue_path(queue, "messages") + b"?lane=%d" % lane
    return await owner.call(b"POST", target, headers=headers, body=batch.record, timeout_s=_REPEAT_S)


async def _ask(cluster: Cluster, batch: Batch, *, queue: str, lane: int, link: Link) -> Answer | Lost | None:
    target = queue_path(queue, "writes", batch.write_id.hex()) + b"?lane=%d&since=%d" % (lane, batch.since)
    answer = await link.call(b"GET", target, timeout_s=ASK_S)
    cluster.note(link, answer)
    if isinstance(step_after(answer)[1], UnknownMessage):
        return None  # not seen by that peer: says nothing about the lane
    return answer
