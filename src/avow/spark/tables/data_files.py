"""Data files: a task's rows as Parquet, one file per combination of partition values.

    topic=orders/partition=0/part-0c9f….parquet       below the caller's folder

Partition columns are stored in folder names (as in Hive and Spark), not in the file. File names are random: an attempt
that runs twice writes two files, and only files that a commit names belong to the table. A file and its folders are
synced before their names are returned, because a queue may be trimmed once its rows are in a table.

Rows are buffered in memory until there are enough for a row group. The buffer and the number of open files are bounded.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import IO, Any, Final, TypeAlias

from avow.errors import InvalidRequest
from avow.spark.tables import version_ranges
from avow.spark.tables.store import Staged
from avow.spark.tables.version_ranges import Range

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError:
    pa = pc = pq = None

BUFFERED_BYTES_MAX: Final = 64 << 20
OPEN_FILES_MAX: Final = 32
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
TEXT_STAT_CHARS: Final = 64
_LAST_CHARACTER: Final = "\U0010ffff"

Values: TypeAlias = tuple[Any, ...]


class DataFiles:
    """The files of one task. `write` batches that fit the table's schema, then `close`, which returns the files."""

    def __init__(self, folder: str, schema: pa.Schema, *, partition_by: Sequence[str], compression: str) -> None:
        self._folder, self._schema, self._compression = folder, schema, compression
        self._partition_by = list(partition_by)
        self._kept = pa.schema([field for field in schema if field.name not in partition_by])
        self._waiting: dict[Values, list[pa.Table]] = {}
        self._waiting_bytes = 0
        self._open: dict[Values, DataFile] = {}
        self._done: list[Staged] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        rows = pa.Table.from_batches([batch]).select(self._schema.names).cast(self._schema)
        for values, part in _split(rows, self._partition_by):
            self._waiting.setdefault(values, []).append(part)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= BUFFERED_BYTES_MAX:
            self._flush()

    def close(self) -> list[Staged]:
        self._flush()
        self._close_files()
        return self._done

    def abandon(self) -> None:
        """After a failure: the files stay, but no commit will name them."""
        for each in self._open.values():
            each.abandon()
        self._open.clear()

    def _flush(self) -> None:
        for values, parts in self._waiting.items():
            if values not in self._open:
                if len(self._open) >= OPEN_FILES_MAX:
                    self._close_files()
                self._open[values] = self._new_file(values)
            self._open[values].write(pa.concat_tables(parts))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _new_file(self, values: Values) -> DataFile:
        texts = {name: text_of(name, value) for name, value in zip(self._partition_by, values, strict=True)}
        return DataFile(self._folder, self._kept, values=texts, compression=self._compression)

    def _close_files(self) -> None:
        self._done += [each.close() for each in self._open.values()]
        self._open.clear()


class DataFile:
    """One file. End it either with `close`, which returns its description, or with `abandon`."""

    def __init__(self, folder: str, schema: pa.Schema, *, values: dict[str, str | None], compression: str) -> None:
        self._folder, self._schema, self._values = folder, schema, values
        parts = [
            f"{escaped(name)}={NULL_FOLDER if value is None else escaped(value)}" for name, value in values.items()
        ]
        self._name = os.path.join(*parts, f"part-{uuid.uuid4()}.parquet")
        self._path = os.path.join(folder, self._name)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._file: IO[bytes] = open(self._path, "xb")  # noqa: SIM115 - closed by close or abandon
        self._writer = pq.ParquetWriter(self._file, schema, compression=compression)
        self._ranges: list[Range] = []
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        self._ranges = version_ranges.merged([*self._ranges, *ranges_of(rows)])
        self._rows += rows.num_rows
        self._writer.write_table(rows.select(self._schema.names).combine_chunks())

    def close(self) -> Staged:
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size_bytes = self._file.tell()
        self._file.close()
        sync_folders(os.path.dirname(self._path), upto=self._folder)
        stats = column_stats(pq.read_metadata(self._path), self._schema)
        return Staged(self._name, self._rows, size_bytes, self._values, tuple(self._ranges), stats)

    def abandon(self) -> None:
        """Closes the writer first, since Arrow's writer would otherwise write its footer when it is collected."""
        if not self._file.closed:
            with suppress(OSError, ValueError):
                self._writer.close()
            self._file.close()


def write_files(
    batches: Iterable[pa.RecordBatch], folder: str, schema: pa.Schema, *, partition_by: Sequence[str], compression: str
) -> list[Staged]:
    files = DataFiles(folder, schema, partition_by=partition_by, compression=compression)
    try:
        for batch in batches:
            files.write(batch)
        return files.close()
    finally:
        files.abandon()


def ranges_of(rows: pa.Table) -> list[Range]:
    """The ranges of versions in an archive's rows; empty for rows without the columns that identify messages."""
    if not set(version_ranges.COLUMNS) <= set(rows.schema.names):
        return []
    kinds = [rows.schema.field(name).type for name in version_ranges.COLUMNS]
    if not (pa.types.is_string(kinds[0]) and pa.types.is_integer(kinds[1]) and pa.types.is_integer(kinds[2])):
        return []
    asked = [(version_ranges.VERSION, what) for what in ("min", "max", "count")]
    found = rows.group_by(list(version_ranges.LANES)).aggregate(asked).to_pylist()
    return [
        Range(
            each[version_ranges.QUEUE],
            each[version_ranges.LANE],
            each["offset_min"],
            each["offset_max"],
            each["offset_count"],
        )
        for each in found
        if None not in each.values()
    ]


def column_stats(metadata: Any, schema: pa.Schema) -> dict[str, Any]:
    """Minimum, maximum and null count of each column, from a file's footer, in the form of Delta's log.

    Every column for which Delta stores statistics must have them: readers treat a column without as empty.
    """
    names = {field.name for field in schema if _has_stats(field.type)}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            name, stats = column.path_in_schema, column.statistics
            if name not in names or stats is None:
                continue
            nulls[name] = nulls.get(name, 0) + (stats.null_count or 0)
            if stats.has_min_max:
                least[name] = min(least.get(name, stats.min), stats.min)
                greatest[name] = max(greatest.get(name, stats.max), stats.max)
    return {
        "minValues": {name: _stat(value) for name, value in least.items()},
        "maxValues": {name: _stat(value, greatest=True) for name, value in greatest.items()},
        "nullCount": nulls,
    }


def _has_stats(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def _stat(value: Any, *, greatest: bool = False) -> Any:
    """The JSON form. A long text is truncated; a truncated maximum ends with the highest character."""
    if isinstance(value, str):
        cut = value[:TEXT_STAT_CHARS]
        return cut + _LAST_CHARACTER if greatest and len(value) > len(cut) else cut
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if value.tzinfo else value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return value


def sync_folders(folder: str, *, upto: str) -> None:
    """Syncs `folder` and its parents up to `upto`, so that new names in them survive a power cut."""
    while True:
        sync_folder(folder)
        if os.path.samefile(folder, upto) or folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _split(rows: pa.Table, names: list[str]) -> Iterator[tuple[Values, pa.Table]]:
    if not names:
        yield (), rows
        return
    combinations = rows.group_by(names).aggregate([]).to_pylist()
    for each in combinations:
        values = tuple(each[name] for name in names)
        if len(combinations) == 1:
            yield values, rows
            return
        yield values, rows.filter(_mask(rows, each))


def _mask(rows: pa.Table, wanted: dict[str, Any]) -> Any:
    mask = None
    for name, value in wanted.items():
        column = rows.column(name)
        hit = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), fill_value=False)
        mask = hit if mask is None else pc.and_(mask, hit)
    return mask


def text_of(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if value == "":
        raise InvalidRequest(
            f"a row has an empty {name}, which a table partitioned by it cannot distinguish from null; nothing was "
            "written. Partition by another column, or write null"
        )
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def escaped(text: str) -> str:
    """Escapes a value for a folder name as Spark does: special ASCII characters become %XX."""
    return "".join(each if each.isalnum() or each in "-_." or ord(each) > 127 else f"%{ord(each):02X}" for each in text)
