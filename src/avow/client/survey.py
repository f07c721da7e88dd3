"""A queue as all of its peers know it together.

One peer's word on where a lane ends is what that peer has applied. It may lag behind, and of a lane that it does not
hold it knows nothing. Whoever plans a range from it (a reader that is to miss nothing) asks all peers at once and takes
the furthest of what they say: an end or a trim that one peer shows was committed, so it is true for all.

A peer that does not answer within a second is left out, as long as one answers. With `confirmed` every two-phase lane's
coordinator is asked besides, so the ends cover every write that was done before the call. The lanes of a pub-sub queue
have no such place: there, what the peers that answered have applied is what is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from avow.client.http import Answer
from avow.client.metadata import LaneInfo, QueueInfo, queue_path, read_queue
from avow.client.reading import LaneReader

if TYPE_CHECKING:
    from avow.client.cluster import Cluster
    from avow.client.links import Link

_ANSWER_S: Final = 1.0
_CONFIRMED_AT_ONCE: Final = 32


async def survey(cluster: Cluster, queue: str, *, confirmed: bool = False) -> QueueInfo:
    """Raises UnknownQueue or Offline as any call does when no peer knows the queue or none answers."""
    now = monotonic()
    trusted = [link for link in cluster.links if not link.gone and link.suspect_until <= now]
    answers = await asyncio.gather(*(_ask(link, queue) for link in trusted))
    found = [answer for answer in answers if answer is not None]
    if not found:
        found = [read_queue((await cluster.call(b"GET", queue_path(queue))).body)]
    known = together(found)
    return await _confirmed(cluster, known) if confirmed and not known.pubsub else known


async def _ask(link: Link, queue: str) -> QueueInfo | None:
    answer = await link.call(b"GET", queue_path(queue), timeout_s=_ANSWER_S)
    if not isinstance(answer, Answer) or not answer.ok:
        return None
    return read_queue(answer.body)


def together(found: Sequence[QueueInfo]) -> QueueInfo:
    """The furthest of each lane. Lanes that only some have heard of are among them."""
    lanes: dict[int, LaneInfo] = {}
    for info in found:
        for lane in info.lanes:
            other = lanes.get(lane.lane)
            lanes[lane.lane] = lane if other is None else _further(other, lane)
    return msgspec.structs.replace(found[0], lanes=tuple(lanes[number] for number in sorted(lanes)))


def _further(one: LaneInfo, other: LaneInfo) -> LaneInfo:
    """Of a queue that was deleted and made anew, the younger one: its lanes have higher numbers."""
    if one.number != other.number:
        return max(one, other, key=lambda lane: lane.number)
    return msgspec.structs.replace(
        one,
        end=max(one.end, other.end),
        trimmed_to=max(one.trimmed_to, other.trimmed_to),
        voters=one.voters or other.voters,
        ended=one.ended or other.ended,
    )


async def _confirmed(cluster: Cluster, known: QueueInfo) -> QueueInfo:
    room = asyncio.Semaphore(_CONFIRMED_AT_ONCE)

    async def confirm(lane: LaneInfo) -> LaneInfo:
        reader = LaneReader(cluster, queue=known.name, lane=lane.lane, after=lane.end, max_bytes=1, max_count=1)
        async with room:
            page = await reader.fetch(after=max(lane.end, lane.trimmed_to), level="linearizable")
        return msgspec.structs.replace(lane, end=max(lane.end, page.end))

    lanes = await asyncio.gather(*(confirm(lane) for lane in known.lanes))
    return msgspec.structs.replace(known, lanes=tuple(lanes))
