"""`archive`: every message of queues into a table, once; and then out of the queues.

    pipeline = archive(spark, ArchiveSpec(name="orders", checkpoint=..., source=Source(queues=("orders",)),
                                          table="delta:/data/orders", trim=True))

The table has all columns of the source, in folders by queue and lane. Read back, queue and table are one sequence:
`format("avow").option("archive", "delta:/data/orders")` takes old versions from the table and new ones from the peers.

Two things would go wrong if the stream were written without thought of trimming:

 * a driver dies after the table's commit, before Spark noted it. The batch is read once more, to be written in vain;
   but its versions may be trimmed by now. So the source of an archive has the archive itself to read them from
 * a checkpoint is lost. The queue's first version may be in the table already. So a stream without a checkpoint begins
   after what the table has, and doubles nothing

A trim waits for the first batch of a run, since only that one may be a repetition that still reads.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from avow.errors import InvalidRequest
from avow.spark.pipelines.pipeline import StreamPipeline
from avow.spark.pipelines.sources import stream_options, stream_rows
from avow.spark.pipelines.status import query_folder
from avow.spark.pipelines.trimming import LaneId, next_versions, trim_archived
from avow.spark.tables import open_table
from avow.spark.tables.opening import open_store
from avow.spark.tables.ranges import LANES, Range, merged
from avow.spark.tables.schemas import from_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from avow.spark.pipelines.spec import ArchiveSpec


def archive(spark: SparkSession, spec: ArchiveSpec, *, once: bool = False) -> StreamPipeline:
    """`once`: all there is, then end. Raises InvalidRequest for a table that this cannot be appended to."""
    from avow.spark.source import kafka_schema

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
    """Used by a stream without a checkpoint only. A lane that the table does not have starts at its first version."""
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
    """A lane in pieces: rows were lost, or came twice. Going on would hide it, unless that was asked for."""
    lanes = [(one.queue, one.lane) for one in merged(held)]
    torn = sorted({lane for lane in lanes if lanes.count(lane) > 1} | _not_whole(held))
    if torn and spec.source.lost == "fail":
        shown = ", ".join(f"lane {lane} of {queue}" for queue, lane in torn)
        raise InvalidRequest(
            f"the archive {spec.table} has rows missing or doubled in {shown}; nothing was started. Repair the table, "
            'or go on after it with [source] lost = "skip"'
        )


def _not_whole(held: list[Range]) -> set[LaneId]:
    return {(one.queue, one.lane) for one in merged(held) if not one.whole}
