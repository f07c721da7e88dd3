"""Reads versions that a queue no longer has from its archive.

An archive is a table (`avow.spark.tables`, Delta or Parquet) with the columns of this source, written by a stream from
it. Its metadata lists the versions of each lane that it holds. The driver skips files whose footers show none of the
requested versions; tasks read the others with pyarrow, by row group and only the requested columns.

A version is read either from the archive or from the queue, never from both: the boundary is the first version that the
queue has at the time of planning. A range of the archive with missing or duplicate rows is not read but reported as
lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from avow.errors import InvalidRequest
from avow.spark.source.planning import LaneId, LaneRange
from avow.spark.source.rows import JOIN_ROWS, cut_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from avow.spark.tables.version_ranges import Range

_GROUP_SIZE_BYTES: Final = 128 * 1024 * 1024


class ArchivePart(InputPartition):
    """Versions of one lane in some files of a folder."""

    def __init__(self, versions: LaneRange, *, folder: str, files: Sequence[str]) -> None:
        super().__init__(None)
        self.versions, self.folder, self.files = versions, folder, tuple(files)

    def __repr__(self) -> str:
        return f"ArchivePart({self.versions}, {len(self.files)} files)"


class Archive:
    """`ranges` are those of the table's metadata, merged; a `whole` range has no gaps."""

    def __init__(self, folder: str, *, files: Sequence[str], ranges: Sequence[Range]) -> None:
        self._folder, self._files = folder, list(files)
        self._ranges: dict[LaneId, list[Range]] = {}
        for one in ranges:
            self._ranges.setdefault((one.queue, one.lane), []).append(one)

    def lanes(self) -> list[LaneId]:
        return sorted(self._ranges)

    def span(self, queue: str, lane: int) -> LaneRange:
        """From the first archived version to after the last; empty for a lane that is not in the archive."""
        found = self._ranges.get((queue, lane))
        if not found:
            return LaneRange(queue, lane, 1, 1)
        return LaneRange(queue, lane, found[0].first, found[-1].last + 1)

    def parts(self, wanted: LaneRange) -> tuple[list[InputPartition], list[LaneRange]]:
        """(partitions for the versions in the archive, ranges that it does not hold)."""
        parts: list[InputPartition] = []
        missing: list[LaneRange] = []
        at = wanted.start
        for one in self._ranges.get((wanted.queue, wanted.lane), ()):
            start, end = max(one.first, at), min(one.last + 1, wanted.end)
            if start >= end or not one.whole:
                continue
            missing.append(LaneRange(wanted.queue, wanted.lane, at, start))
            parts += self._file_parts(LaneRange(wanted.queue, wanted.lane, start, end))
            at = end
        missing.append(LaneRange(wanted.queue, wanted.lane, at, wanted.end))
        return parts, [one for one in missing if one.rows]

    def version_at(self, queue: str, lane: int, time_ms: int) -> int | None:
        """The first archived version whose time is not before `time_ms`."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        moment = pa.scalar(time_ms * 1_000, pa.timestamp("us", tz="UTC"))
        wanted = _of_lane(queue, lane) & (ds.field("timestamp") >= moment)
        found = pc.min(self._dataset.to_table(columns=["offset"], filter=wanted).column("offset")).as_py()
        return None if found is None else int(found)

    def _file_parts(self, versions: LaneRange) -> Iterator[ArchivePart]:
        group: list[str] = []
        size = 0
        for _, path, size_bytes in sorted(self._kept(versions)):  # by version, since file names are random
            group.append(path)
            size += size_bytes
            if size >= _GROUP_SIZE_BYTES:
                yield ArchivePart(versions, folder=self._folder, files=group)
                group, size = [], 0
        if group:
            yield ArchivePart(versions, folder=self._folder, files=group)

    def _kept(self, versions: LaneRange) -> Iterator[tuple[int, str, int]]:
        """(first version, path, bytes) of each file that holds any of the versions, according to its footer."""
        for fragment in self._dataset.get_fragments(filter=_of_lane(versions.queue, versions.lane)):
            kept = fragment.subset(filter=_of_range(versions), schema=self._dataset.schema)
            if kept.row_groups:
                first = min(rows.statistics["offset"]["min"] for rows in kept.row_groups)
                yield first, fragment.path, sum(rows.total_byte_size for rows in kept.row_groups)

    @cached_property
    def _dataset(self) -> Any:
        return _dataset(self._files, self._folder)


def open_archive(url: str | None) -> Archive | None:
    """Raises InvalidRequest for a table that is not made of files."""
    if url is None:
        return None
    from avow.spark.tables.address import Kind, parse
    from avow.spark.tables.delta import DeltaStore
    from avow.spark.tables.parquet import ParquetStore
    from avow.spark.tables.version_ranges import merged

    address = parse(url)
    if address.kind is Kind.POSTGRESQL:
        raise InvalidRequest("option archive must be a table of files, delta:PATH or parquet:PATH; nothing was read")
    store = DeltaStore(address) if address.kind is Kind.DELTA else ParquetStore(address)
    return Archive(address.place, files=store.files(), ranges=merged(store.ranges()))


def read_archive(part: ArchivePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    dataset = _dataset(part.files, part.folder)
    if missing := sorted(set(schema.names) - set(dataset.schema.names)):
        raise InvalidRequest(f"the archive {part.folder} has no column {', '.join(missing)}; nothing was read")
    batches = dataset.to_batches(
        columns=schema.names, filter=_of_range(part.versions), batch_size=JOIN_ROWS, use_threads=False
    )
    for batch in batches:
        if batch.num_rows:
            yield cut_columns(batch, schema)


def _dataset(files: Sequence[str], folder: str) -> Any:
    """The lane may be in folder names or in columns; both are read the same way."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    lanes = pa.schema([pa.field("topic", pa.string()), pa.field("partition", pa.int32())])
    hive = ds.partitioning(lanes, flavor="hive")
    return ds.dataset(list(files), format="parquet", partitioning=hive, partition_base_dir=folder)


def _of_lane(queue: str, lane: int) -> Any:
    import pyarrow.dataset as ds

    return (ds.field("topic") == queue) & (ds.field("partition") == lane)


def _of_range(versions: LaneRange) -> Any:
    import pyarrow.dataset as ds

    inside = (ds.field("offset") >= versions.start) & (ds.field("offset") < versions.end)
    return _of_lane(versions.queue, versions.lane) & inside
