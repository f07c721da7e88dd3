"""The state of a queue, merged from the answers of all peers.

The lane end that one peer reports is what that peer has applied. It may lag, and the peer may not store the lane at
all. A reader that must not miss anything asks all peers at once and takes the highest values: an end or a trim that one
peer reports was committed, so it holds for all.

Peers that do not answer within a second are ignored if at least one answers. With `confirmed`, the coordinator of every
two-phase lane is asked too, so the ends cover every write that was done before the call. Pub-sub lanes have no
coordinator: for them the result is what the answering peers have applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from avow.client.descriptions import LaneInfo, QueueInfo, queue_path, read_queue
from avow.client.reader import LaneReader
from avow.wire.http import Answer

if TYPE_CHECKING:
    from avow.client.cluster import Cluster
    from avow.client.peer_connection import PeerConnection

_ANSWER_S: Final = 1.0
_CONFIRMED_AT_ONCE: Final = 32


async def survey(cluster: Cluster, queue: str, *, confirmed: bool = False) -> QueueInfo:
    """Raises UnknownQueue if no peer knows the queue, Offline if none answers."""
    now = cluster.now()
    trusted = [peer for peer in cluster.peers if not peer.gone and peer.suspect_until <= now]
    answers = await asyncio.gather(*(_ask(peer, queue) for peer in trusted))
    found = [answer for answer in answers if answer is not None]
    if not found:
        found = [read_queue((await cluster.call(b"GET", queue_path(queue))).body)]
    known = together(found)
    return await _confirmed(cluster, known) if confirmed and not known.pubsub else known


async def _ask(peer: PeerConnection, queue: str) -> QueueInfo | None:
    answer = await peer.call(b"GET", queue_path(queue), timeout_s=_ANSWER_S)
    if not isinstance(answer, Answer) or not answer.ok:
        return None
    return read_queue(answer.body)


def together(found: Sequence[QueueInfo]) -> QueueInfo:
    """For each lane the highest values. Includes lanes that only some peers know."""
    lanes: dict[int, LaneInfo] = {}
    for info in found:
        for lane in info.lanes:
            other = lanes.get(lane.lane)
            lanes[lane.lane] = lane if other is None else _further(other, lane)
    return msgspec.structs.replace(found[0], lanes=tuple(lanes[number] for number in sorted(lanes)))


def _further(one: LaneInfo, other: LaneInfo) -> LaneInfo:
    """The higher values. If the queue was deleted and created again, the newer lane, which has the higher number."""
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
    at_once = asyncio.Semaphore(_CONFIRMED_AT_ONCE)

    async def confirm(lane: LaneInfo) -> LaneInfo:
        reader = LaneReader(cluster, queue=known.name, lane=lane.lane, after=lane.end, max_bytes=1, max_count=1)
        async with at_once:
            page = await reader.fetch(after=max(lane.end, lane.trimmed_to), level="linearizable")
        return msgspec.structs.replace(lane, end=max(lane.end, page.end))

    lanes = await asyncio.gather(*(confirm(lane) for lane in known.lanes))
    return msgspec.structs.replace(known, lanes=tuple(lanes))
