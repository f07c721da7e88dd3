"""A folder of Parquet files as a table, exactly once and without a log of the JVM.

    _avow/table.json                                         schema and partition columns
    _avow/staged/{app}/{version}/topic=…/part-{uuid}.parquet     what tasks wrote: no reader looks below _avow
    _avow/committed/{app}/{version}.json                     manifest: which staged file gets which final name
    topic=…/partition=…/part-{app}-{version}-{n}.parquet     the table

The manifest is the commit. Files are renamed after it, and the names follow from the manifest, so whoever comes next
can do the rest. Order of steps, and what a kill -9 after each leaves behind:

    step                                 then visible     what comes next
    1  tasks stage files, synced         no               a replay stages again, takes no notice of them
    2  finish: renames of the last       no               the same
       batch's manifest are done
    3  manifest under a temporary name   no               the same; the temporary file is swept
    4  manifest linked, synced           yes, by `rows`   any commit or `rows` renames; a replay adds nothing
    5  each file renamed, synced         yes, by all      the same, for the rest of the files
    6  earlier batches' staged swept     yes              swept by the next commit

`rows` and `count` do step 2 first, so they see whole batches. A plain `spark.read.parquet(folder)` sees committed
files only, but between 4 and 5 not yet all of a batch.

Commits take turns by a lock on a file, which ends with the process that holds it. The folder must be on a file system
with links, renames and locks that all drivers share (local, NFSv4).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from avow.errors import InvalidRequest, Refused, StorageDamaged, Unknown
from avow.spark.tables import schemas
from avow.spark.tables.address import PARQUET_NOTE, Address
from avow.spark.tables.files import sync_folders, write_files
from avow.spark.tables.manifests import CommittedFile, Manifest, ManifestLog, label, write_once
from avow.spark.tables.ranges import Range
from avow.spark.tables.store import Staged, check_name

if TYPE_CHECKING:
    import pyarrow as pa


class TableNote(msgspec.Struct, frozen=True):
    """`columns` is for people; `schema` is Arrow's own form of it."""

    schema: bytes
    partition_by: list[str]
    columns: dict[str, str]
    format: int = 1


class ParquetStore:
    def __init__(self, address: Address) -> None:
        self._folder, self._compression = address.place, address.compression
        self._own = os.path.join(self._folder, os.path.dirname(PARQUET_NOTE))
        self._committed = os.path.join(self._own, "committed")
        self._staged = os.path.join(self._own, "staged")

    def prepare(self, schema: pa.Schema, *, partition_by: Sequence[str] | None) -> list[str]:
        if not os.path.exists(self._note_path()):
            self._create(schemas.normal(schema), list(partition_by or ()))
        note = self._note()
        schemas.check_fits(schema, table=_arrow(note), where=f"the Parquet table {self._folder}")
        if partition_by is not None and list(partition_by) != note.partition_by:
            raise InvalidRequest(
                f"the Parquet table {self._folder} is partitioned by {note.partition_by}, not by {list(partition_by)}; "
                "nothing was written"
            )
        return note.partition_by

    def _create(self, schema: pa.Schema, partition_by: list[str]) -> None:
        if os.path.isdir(self._folder) and set(os.listdir(self._folder)) - {os.path.basename(self._own)}:
            raise InvalidRequest(f"{self._folder} holds files and is no table of Avow's; nothing was changed")
        schemas.check_partitions(partition_by, schema)
        for folder in (self._committed, self._staged):
            os.makedirs(folder, exist_ok=True)
        columns = {field.name: str(field.type) for field in schema}
        note = TableNote(schema.serialize().to_pybytes(), partition_by, columns)
        with contextlib.suppress(FileExistsError):  # another driver made it: the caller compares
            for _ in write_once(self._note_path(), msgspec.json.encode(note)):
                pass
        sync_folders(self._own, upto=os.path.dirname(self._folder))

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
        *,
        app_id: str,
        version: int,
        partition_by: Sequence[str] = (),
    ) -> list[Staged]:
        check_name(app_id=app_id, version=version)
        folder = os.path.join(self._staged, label(app_id), f"{version:020d}")
        os.makedirs(folder, exist_ok=True)
        rows = schemas.normal(schema)
        files = write_files(batches, folder, rows, partition_by=partition_by, compression=self._compression)
        sync_folders(folder, upto=self._staged)
        return files

    def commit(self, staged: Sequence[Staged], *, app_id: str, version: int) -> bool:
        steps = self.commit_steps(staged, app_id=app_id, version=version)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def commit_steps(self, staged: Sequence[Staged], *, app_id: str, version: int) -> Generator[str, None, bool]:
        """One turn for each point at which a kill leaves another state; the value names what is done."""
        check_name(app_id=app_id, version=version)
        log = self._log(app_id)
        with self._locked():
            yield from self._finish(log)
            last = log.last()
            if last is not None and last >= version:
                return False
            manifest = self._manifest(staged, app_id=app_id, version=version)
            yield from log.write(manifest)
            yield from self._finish(log)
            yield from log.compact()
            yield from self._sweep(app_id, before=version)
            return True

    def committed(self, app_id: str) -> int | None:
        if not os.path.exists(self._note_path()):
            return None
        with self._locked():
            return self._log(app_id).last()

    def schema(self) -> pa.Schema:
        return _arrow(self._note())

    def files(self) -> list[str]:
        return [os.path.join(self._folder, each.name) for each in self._all_files()]

    def count(self) -> int:
        return sum(each.rows for each in self._all_files())

    def ranges(self) -> Iterator[Range]:
        for each in self._all_files():
            yield from each.ranges

    def clean(self, *, older_than_s: float) -> int:
        """What commits do not sweep: batches that were never committed nor followed by one that was."""
        limit = time.time() - older_than_s
        removed = 0
        with self._locked():
            for log in self._logs():
                for _ in self._finish(log):
                    pass
            for folder, _, names in os.walk(self._staged):
                for path in (os.path.join(folder, name) for name in names):
                    if os.path.getmtime(path) < limit:
                        os.unlink(path)
                        removed += 1
        return removed

    def _all_files(self) -> list[CommittedFile]:
        self._note()
        found: list[CommittedFile] = []
        with self._locked():
            for log in self._logs():
                for _ in self._finish(log):
                    pass
                found += [each for manifest in log.all() for each in manifest.files]
        return found

    def _manifest(self, staged: Sequence[Staged], *, app_id: str, version: int) -> Manifest:
        below = os.path.join(os.path.relpath(self._staged, self._folder), label(app_id), f"{version:020d}")
        files = []
        for number, each in enumerate(staged):
            source = os.path.join(below, each.place)
            if not os.path.exists(os.path.join(self._folder, source)):
                raise Unknown(
                    f"{source} is gone: another driver may have committed batch {version} of {app_id} or a later one. "
                    "Nothing was committed by this call; write the batch again under the same name"
                )
            final = f"part-{label(app_id)}-{version:020d}-{number:05d}.parquet"
            name = os.path.join(os.path.dirname(each.place), final)
            files.append(CommittedFile(source, name, each.rows, each.size_bytes, each.ranges))
        return Manifest(app_id, version, tuple(files))

    def _finish(self, log: ManifestLog) -> Iterator[str]:
        """Only the last manifest can be unfinished: nobody writes one before the last is finished."""
        manifest, renamed = log.newest(), set[str]()
        for each in manifest.files if manifest is not None else ():
            source, target = (os.path.join(self._folder, name) for name in (each.staged, each.name))
            if os.path.exists(source):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(source, target)
                renamed.add(os.path.dirname(target))
                yield f"{each.name} renamed"
            elif not os.path.exists(target):
                raise StorageDamaged(file=target, position=0, expected=f"{each.rows} rows", found="no file")
        for folder in sorted(renamed):
            sync_folders(folder, upto=self._folder)

    def _sweep(self, app_id: str, *, before: int) -> Iterator[str]:
        """Attempts that still write for an earlier batch fail: their batch is committed."""
        folder = os.path.join(self._staged, label(app_id))
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.isdigit() and int(name) < before:
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
                yield f"{name} swept"

    def _log(self, app_id: str) -> ManifestLog:
        return ManifestLog(self._committed, label(app_id))

    def _logs(self) -> list[ManifestLog]:
        return [ManifestLog(self._committed, name) for name in sorted(os.listdir(self._committed))]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._note()
        with open(os.path.join(self._own, "lock"), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _note_path(self) -> str:
        return os.path.join(self._folder, PARQUET_NOTE)

    def _note(self) -> TableNote:
        schemas.require_pyarrow()
        try:
            with open(self._note_path(), "rb") as file:
                return msgspec.json.decode(file.read(), type=TableNote)
        except FileNotFoundError:
            raise Refused(f"{self._folder} holds no Parquet table of Avow's; nothing was read or changed") from None
        except msgspec.DecodeError as wrong:
            path = self._note_path()
            raise StorageDamaged(file=path, position=0, expected="a table's note", found=str(wrong)) from None


def _arrow(note: TableNote) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(note.schema))
