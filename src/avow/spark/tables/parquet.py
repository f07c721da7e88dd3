"""A folder of Parquet files as a table with exactly-once writes.

    _avow/table.json                                         schema and partition columns
    _avow/staged/{app}/{version}/topic=…/part-{uuid}.parquet     files of tasks: no reader looks below _avow
    _avow/committed/{app}/{version}.json                     manifest: which staged file gets which final name
    topic=…/partition=…/part-{app}-{version}-{n}.parquet     the table

Writing the manifest is the commit. Files are renamed after it to names that the manifest lists, so the next process can
complete a commit that was interrupted. The steps, and what happens after a kill -9 at each:

    step                                 then visible     after a kill
    1  tasks stage files, synced         no               a replay stages again and ignores them
    2  finish: renames of the last       no               the same
       batch's manifest are done
    3  manifest under a temporary name   no               the same; the temporary file is removed
    4  manifest linked, synced           to `rows`        the next commit or `rows` renames; a replay adds nothing
    5  each file renamed, synced         to all           the same, for the rest of the files
    6  staged files of earlier batches   yes              the next commit removes them
       are removed

`rows` and `count` do step 2 first, so they see whole batches. A plain `spark.read.parquet(folder)` sees committed files
only, but between steps 4 and 5 possibly only a part of a batch.

A file lock serializes commits; it is released when its process ends. The folder must be on a file system whose links,
renames and locks all drivers share (local, NFSv4).

The log of a Parquet table has a folder of manifests per app_id, one manifest per batch, named by its version:

    _avow/committed/{app}/{version:020d}.json         the files of one batch
    _avow/committed/{app}/{version:020d}.all.json     the files of all batches up to that one

A manifest is written under a temporary name, synced, and linked under its final name, which must not exist; then the
folder is synced. So it is written atomically and once. After `MANIFESTS_MAX` batches, one file replaces their
manifests. It is written in the same way before they are removed, so after a kill both may exist; then the file with the
higher version counts.

Callers hold the table's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from avow.errors import InvalidRequest, Refused, StorageDamaged, Unknown
from avow.spark.tables import schemas
from avow.spark.tables.address import PARQUET_NOTE, Address
from avow.spark.tables.data_files import escaped, sync_folder, sync_folders, write_files
from avow.spark.tables.store import Staged, check_name
from avow.spark.tables.version_ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa


MANIFESTS_MAX: Final = 100
LABEL_BYTES_MAX: Final = 100
_ONE: Final = ".json"
_ALL: Final = ".all.json"
_TEMPORARY: Final = ".tmp"


class CommittedFile(msgspec.Struct, frozen=True):
    """`staged` is the path at which a task wrote it, `name` its final path; both relative to the table's folder."""

    staged: str
    name: str
    rows: int
    size_bytes: int
    ranges: tuple[Range, ...] = ()


class Manifest(msgspec.Struct, frozen=True):
    app_id: str
    version: int
    files: tuple[CommittedFile, ...]
    format: int = 1


def label(app_id: str) -> str:
    """An app_id in a form for file names."""
    text = escaped(app_id)
    if len(text.encode()) > LABEL_BYTES_MAX:
        text = hashlib.sha256(app_id.encode()).hexdigest()
    return f"app-{text}"


class ManifestLog:
    """The manifests of one app_id."""

    def __init__(self, folder: str, name: str) -> None:
        self._parent, self._folder = folder, os.path.join(folder, name)

    def last(self) -> int | None:
        versions = [version for version, _ in self._names()]
        return max(versions, default=None)

    def newest(self) -> Manifest | None:
        """The manifest of the last batch, unless it was merged into an `.all` file, since then it is finished."""
        last = self.last()
        if last is None or (last, _ONE) not in self._names():
            return None
        return self._read(last, _ONE)

    def all(self) -> Iterator[Manifest]:
        """All manifests of this app_id; each file is in exactly one of them."""
        names = self._names()
        reached = max((version for version, ending in names if ending == _ALL), default=-1)
        if reached >= 0:
            yield self._read(reached, _ALL)
        for version, ending in sorted(names):
            if ending == _ONE and version > reached:
                yield self._read(version, _ONE)

    def write(self, manifest: Manifest) -> Iterator[str]:
        """Yields after each step, for tests that kill there. FileExistsError if the manifest exists."""
        os.makedirs(self._folder, exist_ok=True)
        sync_folder(self._parent)
        for name in os.listdir(self._folder):
            if name.endswith(_TEMPORARY):  # its writer was killed, since we hold the lock
                os.unlink(os.path.join(self._folder, name))
        yield from write_once(self._path(manifest.version, _ONE), msgspec.json.encode(manifest))

    def compact(self) -> Iterator[str]:
        """Call it only after every file of every manifest has its final name."""
        names = self._names()
        if sum(ending == _ONE for _, ending in names) < MANIFESTS_MAX:
            return
        manifests = list(self.all())
        last = manifests[-1]
        files = tuple(each for manifest in manifests for each in manifest.files)
        whole = Manifest(last.app_id, last.version, files)
        yield from write_once(self._path(last.version, _ALL), msgspec.json.encode(whole))
        for version, ending in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(version, ending))
            yield f"manifest {version} removed"

    def _names(self) -> list[tuple[int, str]]:
        if not os.path.isdir(self._folder):
            return []
        found = []
        for name in os.listdir(self._folder):
            number, dot, ending = name.partition(".")
            if number.isdigit() and f"{dot}{ending}" in (_ONE, _ALL):
                found.append((int(number), f"{dot}{ending}"))
        return found

    def _path(self, version: int, ending: str) -> str:
        return os.path.join(self._folder, f"{version:020d}{ending}")

    def _read(self, version: int, ending: str) -> Manifest:
        path = self._path(version, ending)
        with open(path, "rb") as file:
            content = file.read()
        try:
            return msgspec.json.decode(content, type=Manifest)
        except msgspec.DecodeError as wrong:
            raise StorageDamaged(file=path, position=0, expected="a manifest", found=str(wrong)) from None


def write_once(path: str, content: bytes) -> Iterator[str]:
    """Writes a file atomically; yields after each step. FileExistsError if it exists."""
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{uuid.uuid4()}{_TEMPORARY}")
    with open(temporary, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    yield "written under a temporary name"
    try:
        os.link(temporary, path)
        yield "linked"
    finally:
        os.unlink(temporary)
    sync_folder(folder)
    yield "synced"


class TableNote(msgspec.Struct, frozen=True):
    """`columns` is the schema for people, `schema` in Arrow's serialized form."""

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
            raise InvalidRequest(f"{self._folder} holds files but is not a table of Avow; nothing was changed")
        schemas.check_partitions(partition_by, schema)
        for folder in (self._committed, self._staged):
            os.makedirs(folder, exist_ok=True)
        columns = {field.name: str(field.type) for field in schema}
        note = TableNote(schema.serialize().to_pybytes(), partition_by, columns)
        with contextlib.suppress(FileExistsError):  # another driver created it; the caller compares the schema
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
        """Commits step by step: yields the name of each step after which a kill leaves a different state."""
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
        """Removes what commits do not: batches that were never committed nor followed by a committed one."""
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
                    f"{source} no longer exists: another driver may have committed batch {version} of {app_id} or a "
                    "later one. This call committed nothing; write the batch again under the same name"
                )
            final = f"part-{label(app_id)}-{version:020d}-{number:05d}.parquet"
            name = os.path.join(os.path.dirname(each.place), final)
            files.append(CommittedFile(source, name, each.rows, each.size_bytes, each.ranges))
        return Manifest(app_id, version, tuple(files))

    def _finish(self, log: ManifestLog) -> Iterator[str]:
        """Renames the files of the last manifest. Earlier ones were finished before it was written."""
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
        """Removes staged files of earlier batches. Attempts that still write them fail, but those are committed."""
        folder = os.path.join(self._staged, label(app_id))
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.isdigit() and int(name) < before:
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
                yield f"{name} removed"

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
            raise Refused(f"{self._folder} is not a Parquet table of Avow; nothing was read or changed") from None
        except msgspec.DecodeError as wrong:
            path = self._note_path()
            raise StorageDamaged(file=path, position=0, expected="a table's description", found=str(wrong)) from None


def _arrow(note: TableNote) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(note.schema))
