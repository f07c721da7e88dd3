"""Merges small files of a Delta table into large ones, keeping the order of their rows.

A stream that commits twice per second writes four files per second. Opening the table reads all their names, and
reading it opens all of them. deltalake's `optimize.compact` merges files by size only, which would put an archive's
versions out of order. Here adjacent files of one partition are merged: by version in an archive, otherwise by age.

    plan      runs of at least `FEW` small adjacent files, up to the size of a large file
    rewrite   their rows in that order into one new file, which is not visible, like any staged file
    commit    one entry of the log: adds the new file, removes the old ones, with `dataChange` false

The entry is written atomically under a number that must be free. If another writer committed meanwhile, it is retried
with the next number, as long as every file to be removed is still in the table. Transaction versions are not changed.
Readers that started before continue with the old files; `clean` removes those a day later. Only tables of the plain
format are compacted, since newer writer features may need other entries.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import msgspec

from avow.errors import Refused
from avow.spark.tables.address import DELTA_LOG
from avow.spark.tables.data_files import DataFile, sync_folder, text_of
from avow.spark.tables.store import Staged
from avow.spark.tables.version_ranges import VERSION

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

LARGE_BYTES: Final = 64 << 20
FEW: Final = 8  # shorter runs of small files are not merged
ATTEMPTS: Final = 10
WRITER_VERSION_MAX: Final = 2
_encoder: Final = msgspec.json.Encoder(decimal_format="number")
_PATH_SAFE: Final = "/=-_.~+:@!$&'()*,;"


class SmallFile(msgspec.Struct, frozen=True, order=True):
    """`place` is the sort key within a partition; `path` is URL-quoted, as in the log."""

    values: tuple[str | None, ...]
    place: tuple[int, str]
    path: str
    size_bytes: int


def compact(table: DeltaTable, folder: str, schema: pa.Schema, *, compression: str) -> int:
    """Returns by how many files the table has fewer. Raises Refused for a table with newer writer features."""
    if table.protocol().min_writer_version > WRITER_VERSION_MAX:
        raise Refused(f"{folder} uses newer writer features of Delta, which Avow does not know; nothing was compacted")
    names = list(table.metadata().partition_columns)
    kept = schema
    for name in names:
        kept = kept.remove(kept.get_field_index(name))
    gone = 0
    for run in runs(files_of(table, names)):
        made = _rewritten(run, folder, kept, names=names, compression=compression)
        if _replaced(folder, run, made, schema=table.schema().to_json()):
            gone += len(run) - 1
    return gone


def files_of(table: DeltaTable, names: Sequence[str]) -> list[SmallFile]:
    import pyarrow as pa

    found = []
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        first = row.get(f"min.{VERSION}")
        place = first if isinstance(first, int) else row["modification_time"]
        values = tuple(text_of(name, row[f"partition.{name}"]) for name in names)
        found.append(SmallFile(values, (place, row["path"]), row["path"], row["size_bytes"]))
    return found


def runs(files: Iterable[SmallFile], *, large_bytes: int = LARGE_BYTES, few: int = FEW) -> Iterator[list[SmallFile]]:
    """Runs of adjacent files to merge. A run ends at a large file and at the end of a partition. Pure."""
    run: list[SmallFile] = []
    size_bytes = 0
    for one in sorted(files, key=lambda each: (tuple(text or "" for text in each.values), each.place)):
        other = bool(run) and run[0].values != one.values
        if run and (other or size_bytes + one.size_bytes > large_bytes):
            if len(run) >= few:
                yield run
            run, size_bytes = [], 0
        run.append(one)
        size_bytes += one.size_bytes
    if len(run) >= few:
        yield run


def _rewritten(
    run: Sequence[SmallFile], folder: str, kept: pa.Schema, *, names: Sequence[str], compression: str
) -> Staged:
    import pyarrow.parquet as pq

    file = DataFile(folder, kept, values=dict(zip(names, run[0].values, strict=True)), compression=compression)
    try:
        for one in run:
            rows = pq.ParquetFile(os.path.join(folder, unquote(one.path))).read()
            file.write(rows.select(kept.names).cast(kept))
        return file.close()
    finally:
        file.abandon()


def _replaced(folder: str, run: Sequence[SmallFile], made: Staged, *, schema: str) -> bool:
    """False if another writer removed one of the files, changed the columns, or committed first every time."""
    from deltalake import DeltaTable

    entry = entry_of(run, made, now_ms=int(time.time() * 1000))
    for _ in range(ATTEMPTS):
        table = DeltaTable(folder)
        there = {one.path for one in files_of(table, list(table.metadata().partition_columns))}
        if table.schema().to_json() != schema or not all(one.path in there for one in run):
            return False
        if _linked(os.path.join(folder, DELTA_LOG), table.version() + 1, entry):
            DeltaTable(folder).create_checkpoint()
            return True
    return False


def entry_of(run: Sequence[SmallFile], made: Staged, *, now_ms: int) -> bytes:
    """The entry in the form of Delta's log: one action per line. Pure."""
    parameters = {"removed": str(len(run)), "added": "1"}
    info = {"timestamp": now_ms, "operation": "OPTIMIZE", "operationParameters": parameters, "engineInfo": "avow"}
    lines: list[dict[str, Any]] = [{"commitInfo": info}]
    for one in run:
        values = dict(zip(made.values, one.values, strict=True))
        lines.append(
            {
                "remove": {
                    "path": one.path,
                    "deletionTimestamp": now_ms,
                    "dataChange": False,
                    "extendedFileMetadata": True,
                    "partitionValues": values,
                    "size": one.size_bytes,
                }
            }
        )
    stats = stats_text(made)
    added = {"path": quote(made.place, safe=_PATH_SAFE), "partitionValues": made.values, "size": made.size_bytes}
    lines.append({"add": {**added, "modificationTime": now_ms, "dataChange": False, "stats": stats}})
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def stats_text(each: Staged) -> str:
    """A file's column statistics in the form of Delta's log."""
    return _encoder.encode({"numRecords": each.rows, **each.stats}).decode()


def _linked(log: str, version: int, entry: bytes) -> bool:
    """Writes an entry atomically; False if its number is taken. The content is synced before it gets its name."""
    temporary = os.path.join(log, f"_commit_{uuid.uuid4()}.json.tmp")
    with open(temporary, "xb") as file:
        file.write(entry)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, os.path.join(log, f"{version:020}.json"))
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    sync_folder(log)
    return True
