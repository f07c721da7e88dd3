"""`archive`: write every message of queues to a table once, and then trim the queues.

    pipeline = archive(spark, ArchiveSpec(name="orders", checkpoint=..., source=Source(queues=("orders",)),
                                          table="delta:/data/orders", trim=True))

The table has all columns of the source, in folders by queue and lane. A reader sees queue and table as one sequence:
`format("avow").option("archive", "delta:/data/orders")` reads old versions from the table and new ones from the peers.

Trimming needs two precautions:

 * The driver may crash after the table's commit but before Spark recorded it. The batch is then read again, although
   its versions may already be trimmed. So the source of an archive pipeline has the archive itself as its archive.
 * The checkpoint may be lost while the table already holds the first versions of the queue. So a stream without a
   checkpoint starts after the versions in the table, and doubles nothing.

Only the first batch of a run may be such a repetition, so trimming waits until it is done.

A version may be trimmed when a reader can get it from the archive. The table's metadata, written in the same commit as
the rows, holds the version ranges and their numbers of rows. So a lane may be trimmed from its first existing version
up to the first one that is missing in the table. A gap in which no version exists any more does not count: keeping
later versions would not bring back those that are lost.

The last `keep` versions of each lane always stay in the queue. The queue itself respects subscribers that hold
messages: a trim goes only as far as they allow.

The table is always committed before a trim. A stream that crashed between the two trims after its next batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from avow.client.blocking import connect_blocking
from avow.errors import InvalidRequest
from avow.spark.pipelines.inputs import stream_options, stream_rows
from avow.spark.pipelines.pipeline import StreamPipeline
from avow.spark.pipelines.status import query_folder
from avow.spark.tables import open_table
from avow.spark.tables.schemas import from_spark
from avow.spark.tables.tables import open_store
from avow.spark.tables.version_ranges import LANES, Range, merged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from avow.client.blocking import BlockingClient
    from avow.spark.pipelines.spec import ArchiveSpec, Cluster


LaneId: TypeAlias = tuple[str, int]


class LaneEnds(Struct, frozen=True):
    """The existing versions of a lane: those after `trimmed_to`, up to `end`."""

    trimmed_to: int
    end: int


def safe_ends(held: Iterable[Range], lanes: Mapping[LaneId, LaneEnds], *, keep: int) -> dict[LaneId, int]:
    """The version up to which each lane may be trimmed; without lanes of which nothing may be trimmed. Pure."""
    reached = {lane: ends.trimmed_to for lane, ends in lanes.items()}
    for one in merged(held):
        lane = (one.queue, one.lane)
        if lane in reached and one.whole and one.first <= reached[lane] + 1:
            reached[lane] = max(reached[lane], one.last)
    allowed = {lane: min(at, lanes[lane].end - keep) for lane, at in reached.items()}
    return {lane: at for lane, at in sorted(allowed.items()) if at > lanes[lane].trimmed_to}


def next_versions(held: Iterable[Range]) -> dict[LaneId, int]:
    """Where a stream without a checkpoint starts: after the last version of each lane in the table. Pure."""
    found: dict[LaneId, int] = {}
    for one in held:
        lane = (one.queue, one.lane)
        found[lane] = max(found.get(lane, 1), one.last + 1)
    return found


def trim_archived(url: str, cluster: Cluster, *, keep: int) -> int:
    """Trims every lane in the table. Returns how many versions this removed."""
    held = list(open_store(url).ranges())
    queues = sorted({one.queue for one in held})
    with connect_blocking(cluster.servers, token=cluster.token or None, ca=cluster.ca or None) as client:
        lanes = {lane: ends for queue in queues for lane, ends in _lanes_of(client, queue)}
        removed = 0
        for (queue, lane), upto in safe_ends(held, lanes, keep=keep).items():
            removed += max(0, client.queue(queue).trim(lane, upto) - lanes[queue, lane].trimmed_to)
    return removed


def _lanes_of(client: BlockingClient, queue: str) -> list[tuple[LaneId, LaneEnds]]:
    found = client.queue(queue).survey().lanes
    return [((queue, lane.lane), LaneEnds(lane.trimmed_to, lane.end)) for lane in found]


def archive(spark: SparkSession, spec: ArchiveSpec, *, once: bool = False) -> StreamPipeline:
    """`once`: process the present messages, then end. Raises InvalidRequest if the table has other columns."""
    from avow.spark.source.data_source import kafka_schema

    store = open_store(spec.table)
    store.prepare(from_spark(kafka_schema(headers=spec.source.headers)), partition_by=LANES)
    held = list(store.ranges())
    _refuse_holes(held, spec)
    options = stream_options(replace(spec.source, archive=spec.table), spec.cluster)
    if held:
        options = {name: value for name, value in options.items() if not name.startswith("starting")}
        options["startingOffsets"] = _starting(next_versions(held), spec)
    query = open_table(spec.table).write_stream(
        stream_rows(spark, options),
        checkpoint=query_folder(spec.checkpoint),
        query_name=spec.name,
        trigger=trigger_of(spec.every, once=once),
        partition_by=LANES,
    )
    after = partial(trim_archived, spec.table, spec.cluster, keep=spec.keep) if spec.trim else None
    return StreamPipeline(query, name=spec.name, after_batch=after)


def trigger_of(every: str, *, once: bool) -> dict[str, Any]:
    return {"availableNow": True} if once else {"processingTime": every or "0 seconds"}


def _starting(lanes: dict[LaneId, int], spec: ArchiveSpec) -> str:
    """The start of a stream without a checkpoint. A lane that is not in the table starts at its first version."""
    found: dict[str, dict[str, int]] = {}
    for (queue, lane), version in sorted(lanes.items()):
        if _is_read(queue, spec):
            found.setdefault(queue, {})[str(lane)] = version
    return json.dumps(found) if found else "earliest"


def _is_read(queue: str, spec: ArchiveSpec) -> bool:
    if spec.source.pattern:
        return re.fullmatch(spec.source.pattern, queue) is not None
    return queue in spec.source.queues


def _refuse_holes(held: list[Range], spec: ArchiveSpec) -> None:
    """Refuse an archive with missing or duplicate rows, which continuing would hide, unless lost = "skip" is set."""
    lanes = [(one.queue, one.lane) for one in merged(held)]
    broken = sorted({lane for lane in lanes if lanes.count(lane) > 1} | _not_whole(held))
    if broken and spec.source.lost == "fail":
        shown = ", ".join(f"lane {lane} of {queue}" for queue, lane in broken)
        raise InvalidRequest(
            f"the archive {spec.table} has missing or duplicate rows in {shown}; nothing was started. Repair the "
            'table, or continue after them with [source] lost = "skip"'
        )


def _not_whole(held: list[Range]) -> set[LaneId]:
    return {(one.queue, one.lane) for one in merged(held) if not one.whole}
