"""Reading a partition in a task, and the batch reader that plans the partitions.

A task requests large pages of raw batches from a peer, several MiB each, and prefetches the next page while Spark takes
the rows of the present one. Tasks start with different peers to share the load. Any peer that has the versions can
answer; with the level `at_least`, a peer that lags behind waits until it has them, or the next peer is used. A peer on
the task's machine sends file positions instead of batches, and the task reads the files (option `localReads`). The
task checks that every version of the range arrives, once and in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from avow.client.blocking import connect_blocking
from avow.errors import Malformed, Trimmed
from avow.limits import BATCH_SIZE_BYTES_MAX
from avow.spark.source.archive import Archive, ArchivePart, open_archive, read_archive
from avow.spark.source.options import SourceOptions
from avow.spark.source.planning import LOG, LaneRange, LaneState, cut, lost_part, report_loss
from avow.spark.source.queue_survey import Surveyor
from avow.spark.source.rows import LaneRows

if TYPE_CHECKING:
    import pyarrow as pa

    from avow.client.blocking import BlockingClient, BlockingQueue
    from avow.client.reader import ReadBatch

PAGE_SIZE_BYTES: Final = BATCH_SIZE_BYTES_MAX
PAGE_ROWS_MAX: Final = 100_000
_TRIMS_MAX: Final = 100  # per partition; each trim moves its start forward


class LanePart(InputPartition):
    """Versions of one lane; `preferred` is the peer that this task asks first."""

    def __init__(self, versions: LaneRange, *, preferred: int) -> None:
        super().__init__(None)
        self.versions, self.preferred = versions, preferred

    def __repr__(self) -> str:
        return f"LanePart({self.versions}, peer {self.preferred})"


def open_client(options: SourceOptions) -> BlockingClient:
    return connect_blocking(options.servers, token=options.token, ca=options.ca)


# ------------------------------------------------------------------ in tasks


def read_part(options: SourceOptions, part: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if isinstance(part, ArchivePart):
        yield from read_archive(part, schema)
    elif isinstance(part, LanePart):
        versions = part.versions
        rows = LaneRows(schema, queue=versions.queue, lane=versions.lane)
        with open_client(options) as client:
            for page in pages_of(client.queue(versions.queue), part, options):
                yield from rows.record_batches(page)


def pages_of(queue: BlockingQueue, part: LanePart, options: SourceOptions) -> Iterator[Sequence[ReadBatch]]:
    """Every existing version of the range, in order. Versions trimmed meanwhile are reported."""
    versions, at = part.versions, part.versions.start
    for _ in range(_TRIMS_MAX):
        try:
            for page in _pages(queue, versions, at=at, preferred=part.preferred, local=options.local_reads):
                at = _following(versions, page, at=at)
                yield page
        except Trimmed:
            lost, there = lost_part(_from(versions, at), _first_version(queue, versions))
            if lost is None:
                raise
            report_loss(lost, fail=options.fail_on_data_loss)
            at = versions.end if there is None else there.start
        if at >= versions.end:
            return
    raise Trimmed(
        f"{versions}: trimmed {_TRIMS_MAX} times while it was read; the read failed at version {at}. Repeat it"
    )


def _pages(
    queue: BlockingQueue, versions: LaneRange, *, at: int, preferred: int, local: bool
) -> Iterator[list[ReadBatch]]:
    last = versions.end - 1
    return queue.pages(
        after=at - 1,
        lane=versions.lane,
        level="at_least",
        at_least=last,
        until=last,
        max_bytes=PAGE_SIZE_BYTES,
        max_count=min(PAGE_ROWS_MAX, versions.end - at),
        preferred=preferred,
        local=local,
    )


def _following(versions: LaneRange, page: Sequence[ReadBatch], *, at: int) -> int:
    """The version after a page. Raises Malformed if a version is missing or repeated."""
    for batch in page:
        if batch.first_version != at:
            raise Malformed(f"answer for {versions}", expected=f"version {at}", found=batch.first_version)
        at = batch.last_version + 1
    return at


def _from(versions: LaneRange, at: int) -> LaneRange:
    return LaneRange(versions.queue, versions.lane, at, versions.end)


def _first_version(queue: BlockingQueue, versions: LaneRange) -> int:
    """The first existing version; the end of the range if the lane no longer exists."""
    lanes = {lane.lane: lane for lane in queue.survey().lanes}
    lane = lanes.get(versions.lane)
    return versions.end if lane is None else lane.trimmed_to + 1


# ------------------------------------------------------------------ on the driver


def plan(
    ranges: Sequence[LaneRange], states: Sequence[LaneState], options: SourceOptions, *, archive: Archive | None
) -> list[InputPartition]:
    """Partitions for ranges. Versions that the queues have (`states`) come from peers, older ones from the archive."""
    lanes = {(state.queue, state.lane): state for state in states}
    queued: list[LaneRange] = []
    parts: list[InputPartition] = []
    for one in ranges:
        known = lanes.get((one.queue, one.lane))
        before, there = lost_part(one, one.end if known is None else known.first)
        if there is not None:
            queued.append(there)
        if before is not None and archive is not None:
            archived, lost = archive.parts(before)
            parts += archived
        else:
            lost = [] if before is None else [before]
        for missing in lost:
            report_loss(missing, fail=options.fail_on_data_loss)
    pieces = cut(queued, min_partitions=options.min_partitions, rows_max=options.partition_rows_max)
    for number, piece in enumerate(pieces):
        holders = lanes[piece.queue, piece.lane].peers or (0,)
        parts.append(LanePart(piece, preferred=holders[number % len(holders)]))
    return parts


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        if options.ignored:
            LOG.warning("a batch read ignores the options %s, which are for streams", ", ".join(options.ignored))
        archive = open_archive(options.archive)
        with open_client(options) as client:
            surveyor = Surveyor(client, options, archive=archive)
            queued = surveyor.states(confirmed=True)
            states = surveyor.with_archive(queued)
            starts, _ = surveyor.starts(states)
            ends = surveyor.ends(states)
        ranges = [LaneRange(*key, starts[key], ends[key]) for key in sorted(starts)]
        return plan([one for one in ranges if one.rows], queued, options, archive=archive)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(self._options, partition, self._schema)
