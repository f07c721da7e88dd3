"""How far a queue may be trimmed, and doing it.

A version may go when a reader can get it from the archive. What a table holds is in its metadata, written in the same
commit as the rows: versions from, to, and how many rows. So a lane may be trimmed from its first version that still
exists for as long as the table has every following one. A hole ends that, unless nothing in it exists any more: what is
lost already cannot be protected by keeping what comes after it.

`keep` versions at the end of each lane stay in the queue in any case. Subscribers that hold their place are respected
by the queue itself: a trim goes as far as they allow.

The table's commit comes first, always. A stream that died between the two trims after its next batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from avow.client.blocking import connect_blocking
from avow.spark.tables.opening import open_store
from avow.spark.tables.ranges import Range, merged

if TYPE_CHECKING:
    from avow.client.blocking import BlockingClient
    from avow.spark.pipelines.spec import Cluster

LaneId: TypeAlias = tuple[str, int]


class LaneEnds(Struct, frozen=True):
    """Versions of a lane that exist: those after `trimmed_to`, up to `end`."""

    trimmed_to: int
    end: int


def safe_ends(held: Iterable[Range], lanes: Mapping[LaneId, LaneEnds], *, keep: int) -> dict[LaneId, int]:
    """Up to which version each lane may be trimmed; lanes of which nothing more may go are not named. Pure."""
    reached = {lane: ends.trimmed_to for lane, ends in lanes.items()}
    for one in merged(held):
        lane = (one.queue, one.lane)
        if lane in reached and one.whole and one.first <= reached[lane] + 1:
            reached[lane] = max(reached[lane], one.last)
    allowed = {lane: min(at, lanes[lane].end - keep) for lane, at in reached.items()}
    return {lane: at for lane, at in sorted(allowed.items()) if at > lanes[lane].trimmed_to}


def next_versions(held: Iterable[Range]) -> dict[LaneId, int]:
    """Where a stream without a checkpoint goes on: after the last version of each lane that the table has. Pure."""
    found: dict[LaneId, int] = {}
    for one in held:
        lane = (one.queue, one.lane)
        found[lane] = max(found.get(lane, 1), one.last + 1)
    return found


def trim_archived(url: str, cluster: Cluster, *, keep: int) -> int:
    """Trims every lane that the table has. Answers how many versions are gone by this."""
    held = list(open_store(url).ranges())
    queues = sorted({one.queue for one in held})
    with connect_blocking(cluster.servers, token=cluster.token or None, ca=cluster.ca or None) as client:
        lanes = {lane: ends for queue in queues for lane, ends in _lanes_of(client, queue)}
        gone = 0
        for (queue, lane), upto in safe_ends(held, lanes, keep=keep).items():
            gone += max(0, client.queue(queue).trim(lane, upto) - lanes[queue, lane].trimmed_to)
    return gone


def _lanes_of(client: BlockingClient, queue: str) -> list[tuple[LaneId, LaneEnds]]:
    found = client.queue(queue).survey().lanes
    return [((queue, lane.lane), LaneEnds(lane.trimmed_to, lane.end)) for lane in found]
