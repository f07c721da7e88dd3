"""Small files of a Delta table made into large ones, in the order of their rows.

A stream that commits twice a second leaves four files a second; whoever opens the table reads all their names, and
whoever reads it opens all of them. deltalake's own `optimize.compact` puts files together by size alone: in an archive
that would bring versions out of order. Here neighbours are put together: files of one partition that follow one
another, by version in an archive and by age elsewhere.

    plan      runs of neighbours that are small, enough of them to be worth it, up to the size of a large file
    rewrite   their rows in that order into one new file, as invisible as any staged file
    commit    one entry of the log: the new file added, the old ones removed, `dataChange` false: rows are the same ones

The entry appears whole under a number that must be free, or not at all. If others have committed meanwhile it is tried
again behind them, as long as every file to be removed is still in the table. Notes of transactions are not touched, so
a batch is known as before. Readers that began before go on reading the old files: `clean` removes those a day later.
Only tables of the plain format are compacted: what a newer writer's features demand of an entry is not known here.
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
from avow.spark.tables.files import DataFile, sync_folder, text_of
from avow.spark.tables.ranges import VERSION
from avow.spark.tables.store import Staged

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

LARGE_BYTES: Final = 64 << 20
FEW: Final = 8  # neighbours fewer than this are left alone
ATTEMPTS: Final = 10
WRITER_VERSION_MAX: Final = 2
_encoder: Final = msgspec.json.Encoder(decimal_format="number")
_PATH_SAFE: Final = "/=-_.~+:@!$&'()*,;"


class SmallFile(msgspec.Struct, frozen=True, order=True):
    """`place`: where it is among its neighbours; `path` as the log has it, which is as in a URL."""

    values: tuple[str | None, ...]
    place: tuple[int, str]
    path: str
    size_bytes: int


def compact(table: DeltaTable, folder: str, schema: pa.Schema, *, compression: str) -> int:
    """How many files became fewer. Raises Refused for a table that this must not write to."""
    if table.protocol().min_writer_version > WRITER_VERSION_MAX:
        raise Refused(f"{folder} uses features of newer writers of Delta; nothing was compacted")
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
    """Neighbours to be put together. A file that is large already ends a run, as does another partition. Pure."""
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
    """False: others have removed one of the files or changed the columns, or were faster each time."""
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
    """One action a line, as Delta's log has it. Pure."""
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
    """What Delta's log has of a file's columns."""
    return _encoder.encode({"numRecords": each.rows, **each.stats}).decode()


def _linked(log: str, version: int, entry: bytes) -> bool:
    """Whether the number was free. The entry is whole and durable before it has its name."""
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
