"""A pipeline's counts: Spark's progress of each batch, added up. Pure.

Spark keeps the progress of the last hundred batches. A runner polls several times per second, so it misses a batch only
if a hundred batches are done between two polls; `counted` adds the batches that are new, by batch number. Spark also
reports triggers that found nothing to do, under the number of the batch before; from those only the lag is used.

    rows        rows that the source returned
    lag         versions in the queues that the stream has not read, over all lanes; None if unknown
    rows_per_s  of the last batch that had rows
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from avow.errors import InvalidRequest
from avow.spark.source.offsets import from_json


class Counts(Struct, frozen=True):
    """`seen` is the number of the last batch counted; `trimmed`: versions removed from queues after archiving."""

    batches: int = 0
    rows: int = 0
    seen: int = -1
    batch_rows: int = 0
    batch_s: float = 0.0
    rows_per_s: float = 0.0
    lag: int | None = None
    trimmed: int = 0
    tasks_done: int = 0
    tasks: int = 0


def counted(before: Counts, progress: Iterable[Mapping[str, Any]]) -> Counts:
    """Adds new batches. `progress` is Spark's list, oldest first."""
    counts = before
    for one in progress:
        number, rows = int(one["batchId"]), max(0, int(one["numInputRows"]))
        lag = lag_of(one.get("sources") or ())
        if number <= counts.seen or not _was_a_batch(one):
            counts = replace(counts, lag=lag if number >= counts.seen else counts.lag)
            continue
        took_s = float((one.get("durationMs") or {}).get("triggerExecution", one.get("batchDuration", 0))) / 1000
        counts = replace(counts, batches=counts.batches + 1, rows=counts.rows + rows, seen=number, lag=lag)
        if rows:
            speed = rows / took_s if took_s > 0 else 0.0
            counts = replace(counts, batch_rows=rows, batch_s=took_s, rows_per_s=speed)
    return counts


def _was_a_batch(one: Mapping[str, Any]) -> bool:
    """A trigger without a batch has no duration for `addBatch`."""
    return "addBatch" in (one.get("durationMs") or {})


def lag_of(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """None unless a source reports both its end offset and the latest offset."""
    lag: int | None = None
    for source in sources:
        read, there = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if read is None or there is None:
            continue
        waiting = (max(0, at - read.next(queue, lane)) for queue, lane, at in there.lanes())
        lag = (lag or 0) + sum(waiting)
    return lag


def _offset(text: Any) -> Any:
    if not text or text == "null":
        return None
    try:
        found = json.loads(text) if isinstance(text, str) else text
        return from_json(found) if isinstance(found, Mapping) else None
    except (ValueError, InvalidRequest):
        return None  # the offset of another kind of source
