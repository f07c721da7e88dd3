"""`replay`: copy messages by version, time or a filter from a queue or its archive to another queue.

    pipeline = replay(spark, ReplaySpec(..., source=Source(queues=("orders",), start=100, end=200),
                                        where="key IS NOT NULL", sink=Sink(queue="orders-again")))

A replay is one job and one transaction: all of it becomes visible, lane by lane, or nothing. Its name is derived from
the file's settings. So a replay that crashed can be run again and doubles nothing, and a finished one is not repeated
unless `again` is set.

For that, a repetition must read the same rows, but "up to the latest" would include more of them the second time. So
the versions of each lane are decided once and stored in the checkpoint folder before anything is read:

    _avow_plan.json     {"name": ..., "lanes": {"orders": {"0": [100, 201]}}, "done": false}

Messages keep key, value, headers and time. They go to the lanes of their keys (with `keep_lanes`, to their old lanes)
and keep the order of the lane that they come from, since one task writes a lane. `ordered = false` avoids the shuffle.
"""

from __future__ import annotations

import json
import time
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from avow.errors import InvalidRequest
from avow.spark.pipelines.inputs import source_options
from avow.spark.pipelines.pipeline import JobPipeline
from avow.spark.pipelines.transform_pipeline import observed, send
from avow.spark.source.options import EARLIEST, LATEST, Bound, batch_options
from avow.spark.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from avow.spark.pipelines.spec import ReplaySpec
    from avow.spark.source.options import SourceOptions

PLAN: Final = "_avow_plan.json"
Lanes: TypeAlias = dict[str, dict[int, tuple[int, int]]]
"""By queue and lane: the first version, and the end (exclusive)."""


class Plan(Struct, frozen=True, kw_only=True):
    """`run` is 0, or for a repetition with `again` the time in seconds at which it was requested."""

    name: str
    run: int = 0
    lanes: Lanes = {}
    done: bool = False

    @property
    def rows(self) -> int:
        return sum(end - start for lanes in self.lanes.values() for start, end in lanes.values())


def replay(spark: SparkSession, spec: ReplaySpec, *, again: bool = False) -> JobPipeline:
    """Raises InvalidRequest for an invalid range or filter, before anything is read."""
    plan = planned(spec, again=again)
    rows = None if plan.done or not plan.rows else _filtered(_rows(spark, spec, plan), spec)

    def work() -> int | None:
        if plan.done:
            return None
        sent = 0
        if rows is not None:
            watched, found = observed(_messages(rows, spec))
            send(watched, spec.cluster, app_id=plan.name, version=plan.run)
            sent = int(found.get["rows"])
        _write(spec, replace(plan, done=True))
        return sent

    return JobPipeline(spark, work, name=spec.name)


# ------------------------------------------------------------------ the plan


def name_of(spec: ReplaySpec) -> str:
    """Equal for the same source, range, filter and sink. Pure."""
    what = (spec.name, spec.source, spec.where, spec.sink, spec.keep_lanes)
    return f"replay:{spec.name[:60]}:{blake2b(msgspec.json.encode(what), digest_size=12).hexdigest()}"


def planned(spec: ReplaySpec, *, again: bool) -> Plan:
    """The stored plan, or a new one, which is then stored."""
    path, name = Path(spec.checkpoint) / PLAN, name_of(spec)
    try:
        before = msgspec.json.decode(path.read_bytes(), type=Plan)
    except FileNotFoundError:
        before = None
    except msgspec.DecodeError as wrong:
        raise InvalidRequest(f"{path} is damaged ({wrong}); nothing was read. Delete it or use --again") from wrong
    if before is not None and before.name == name and not again:
        return before
    plan = Plan(name=name, run=int(time.time()) if again else 0, lanes=_decided(spec))
    _write(spec, plan)
    return plan


def _write(spec: ReplaySpec, plan: Plan) -> None:
    path = Path(spec.checkpoint) / PLAN
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(plan))
    fresh.replace(path)


def _decided(spec: ReplaySpec) -> Lanes:
    from avow.spark.tables.tables import open_store
    from avow.spark.tables.version_ranges import merged

    if not spec.source.table:
        return _of_queues(spec)
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for one in merged(open_store(spec.source.table).ranges()):
        first, _ = spans.get((one.queue, one.lane), (one.first, 0))
        spans[one.queue, one.lane] = (first, one.last + 1)
    lanes: Lanes = {}
    for (queue, lane), (first, end) in spans.items():
        wanted = _clipped(first, end, start=_version(spec.source.start, lane), last=_version(spec.source.end, lane))
        if wanted is not None:
            lanes.setdefault(queue, {})[lane] = wanted
    return lanes


def _of_queues(spec: ReplaySpec) -> Lanes:
    from avow.spark.source.archive import open_archive
    from avow.spark.source.partition_reader import open_client
    from avow.spark.source.queue_survey import Surveyor

    options = _bounded(spec)
    archive = open_archive(options.archive)
    lanes: Lanes = {}
    with open_client(options) as client:
        surveyor = Surveyor(client, options, archive=archive)
        states = surveyor.with_archive(surveyor.states(confirmed=True))
        starts, _ = surveyor.starts(states)
        ends = surveyor.ends(states) if options.end.by_time else {}
    for state in states:
        lane = (state.queue, state.lane)
        last = None if ends else _version(spec.source.end, state.lane)
        wanted = _clipped(starts[lane], ends.get(lane, state.next), start=None, last=last)
        if wanted is not None:
            lanes.setdefault(state.queue, {})[state.lane] = wanted
    return lanes


def _bounded(spec: ReplaySpec) -> SourceOptions:
    """A version as a bound applies to every lane. An end after a lane's last version is clipped, not refused."""
    given = source_options(spec.source, spec.cluster)
    options = replace(batch_options(given), start_strategy="latest")
    start, end = spec.source.start, spec.source.end
    if isinstance(start, dict):
        options = replace(options, start=Bound(EARLIEST, {spec.source.queues[0]: start}))
    elif isinstance(start, int):
        options = replace(options, start=Bound(start))
    elif start.startswith("@"):
        options = replace(options, start=Bound(int(start[1:]), by_time=True))
    elif start == "latest":
        options = replace(options, start=Bound(LATEST))
    if isinstance(end, str) and end.startswith("@"):
        options = replace(options, end=Bound(int(end[1:]), by_time=True))
    return options


def _version(bound: object, lane: int) -> int | None:
    if isinstance(bound, dict):
        found = bound.get(lane)
        return found if isinstance(found, int) else None
    return bound if isinstance(bound, int) else None


def _clipped(first: int, end: int, *, start: int | None, last: int | None) -> tuple[int, int] | None:
    """Versions from `start` to `last`, of those there are. None if none is."""
    first = first if start is None else max(first, start)
    end = end if last is None else min(end, last + 1)
    return (first, end) if first < end else None


# ------------------------------------------------------------------ rows


def _rows(spark: SparkSession, spec: ReplaySpec, plan: Plan) -> DataFrame:
    if spec.source.table:
        return _timed(open_table(spec.source.table).rows(spark).where(condition(plan.lanes)), spec)
    options = source_options(spec.source, spec.cluster)
    options.pop("subscribe", None)
    options.pop("subscribePattern", None)
    options["assign"] = json.dumps({queue: sorted(lanes) for queue, lanes in plan.lanes.items()})
    for number, name in enumerate(("startingOffsets", "endingOffsets")):
        options[name] = json.dumps(
            {queue: {str(lane): ends[number] for lane, ends in lanes.items()} for queue, lanes in plan.lanes.items()}
        )
    return spark.read.format("avow").options(**options).load()


def condition(lanes: Lanes) -> str:
    """The lanes as a SQL condition. Pure."""
    parts = []
    for queue, of_queue in sorted(lanes.items()):
        name = queue.replace("\\", "\\\\").replace("'", "\\'")
        for lane, (start, end) in sorted(of_queue.items()):
            parts.append(f"(topic = '{name}' AND partition = {lane} AND offset >= {start} AND offset < {end})")
    return " OR ".join(parts) or "false"


def _timed(rows: DataFrame, spec: ReplaySpec) -> DataFrame:
    for bound, comparison in ((spec.source.start, ">="), (spec.source.end, "<")):
        if isinstance(bound, str) and bound.startswith("@"):
            rows = rows.where(f"timestamp {comparison} timestamp_millis({int(bound[1:])})")
    return rows


def _filtered(rows: DataFrame, spec: ReplaySpec) -> DataFrame:
    from pyspark.errors import PySparkException

    from avow.spark.pipelines.failures import cause_of

    if not spec.where:
        return rows
    try:
        return rows.where(spec.where)
    except PySparkException as error:
        raise InvalidRequest(f"Spark rejects the filter `where`: {cause_of(error)}; nothing was read") from error


def _messages(rows: DataFrame, spec: ReplaySpec) -> DataFrame:
    from pyspark.sql import functions as F

    if spec.ordered:
        rows = rows.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")
    columns = ["key", "value", "timestamp", *(["headers"] if "headers" in rows.columns else [])]
    columns += ["partition"] if spec.keep_lanes else []
    return rows.select(*columns, F.lit(spec.sink.queue).alias("topic"))
