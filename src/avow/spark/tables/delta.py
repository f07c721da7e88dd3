"""A Delta table, written with `deltalake`, so that no JVM package is needed.

Tasks write data files below the table's folder. Delta shows only files that its log names, so they are not visible. The
commit adds one entry to the log: all files of the batch, and Delta's transaction action `txn(app_id, version)`. The
entry is written atomically (a file linked under a name that must not exist), so the state after a kill -9 is:

    killed                         log                  the replayed batch
    while tasks write              nothing              writes new files; the old ones are leftovers
    before the entry               nothing              the same
    after the entry                files and txn        finds txn >= version, adds nothing; its files are leftovers

If another writer commits at the same time, deltalake retries our entry after theirs. It refuses if their entry has our
app_id (a driver that was believed dead) or changed the schema; then the commit reads the log again, and either finds
the version or retries.

A full vacuum removes leftovers. They look like the files of a batch that is being written, so only files that are older
than any batch may take are removed: `clean(older_than_s=...)`, a day by default. deltalake does not sync the log, but
Avow does, because a queue may be trimmed after a commit.

Opening a table reads its log since the last checkpoint, and every batch opens it. So tables created by Avow have a
checkpoint every ten commits (deltalake's default is a hundred), and small files are merged periodically (`compaction`).
A table that another program created is not compacted unless the option `compact` is set.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from avow.errors import AvowError, InvalidRequest, NotInstalled, Refused, Unknown
from avow.spark.tables import schemas
from avow.spark.tables.address import DELTA_LOG, Address
from avow.spark.tables.compaction import compact, stats_text
from avow.spark.tables.data_files import sync_folder, write_files
from avow.spark.tables.store import Staged, check_name
from avow.spark.tables.version_ranges import LANE, LANES, QUEUE, VERSION, Range

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

LOG: Final = logging.getLogger("avow.spark")
COMMIT_ATTEMPTS: Final = 10
CHECKPOINT_EVERY: Final = 10
COMPACT_EVERY: Final = 200
COMPACT_KEY: Final = "avow.compactEvery"
READER_FEATURES: Final = frozenset({"timestampNtz"})  # with others, the data files alone do not hold the rows


class DeltaStore:
    def __init__(self, address: Address) -> None:
        self._folder, self._compression = address.place, address.compression
        self._compact_every = address.compact_every

    def prepare(self, schema: pa.Schema, *, partition_by: Sequence[str] | None) -> list[str]:
        deltalake = _deltalake()
        if not deltalake.DeltaTable.is_deltatable(self._folder):
            self._create(schema, list(partition_by or ()))
        table = self._open()
        schemas.check_fits(schema, table=_arrow(table), where=f"the Delta table {self._folder}")
        found = table.metadata().partition_columns
        if partition_by is not None and list(partition_by) != found:
            raise InvalidRequest(
                f"the Delta table {self._folder} is partitioned by {found}, not by {list(partition_by)}; "
                "nothing was written"
            )
        return list(found)

    def _create(self, schema: pa.Schema, partition_by: list[str]) -> None:
        deltalake = _deltalake()
        if os.path.isdir(self._folder) and os.listdir(self._folder):
            raise InvalidRequest(f"{self._folder} holds files but is not a Delta table; nothing was changed")
        schemas.check_partitions(partition_by, schema)
        wanted = deltalake.Schema.from_arrow(schemas.normal(schema))
        every = COMPACT_EVERY if self._compact_every is None else self._compact_every
        settings: dict[str, str | None] = {
            "delta.checkpointInterval": str(CHECKPOINT_EVERY),
            COMPACT_KEY: str(every),
        }
        deltalake.DeltaTable.create(
            self._folder,
            schema=wanted,
            mode="ignore",
            partition_by=partition_by,
            configuration=settings,
            raise_if_key_not_exists=False,
        )
        self._sync_log(after=-1)
        sync_folder(self._folder)
        sync_folder(os.path.dirname(self._folder))

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
        compression, rows = self._compression, schemas.normal(schema)
        return write_files(batches, self._folder, rows, partition_by=partition_by, compression=compression)

    def commit(self, staged: Sequence[Staged], *, app_id: str, version: int) -> bool:
        """Raises Unknown if the log refused the entry: then this call wrote nothing, but a driver that was believed
        dead may have committed the same batch meanwhile."""
        check_name(app_id=app_id, version=version)
        refusal: Exception | None = None
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open()
            last = table.transaction_version(app_id)
            if last is not None and last >= version:
                self._sync_log(after=-1)
                return False
            refusal = _add(table, staged, app_id=app_id, version=version)
            if refusal is None:
                self._sync_log(after=table.version())
                self._compact_if_due(table, version)
                return True
        raise Unknown(
            f"batch {version} of {app_id} was not written to {self._folder}: its log refused it {COMMIT_ATTEMPTS} "
            f"times, the last time because of: {refusal}. Write the batch again under the same name"
        )

    def _compact_if_due(self, table: DeltaTable, version: int) -> None:
        """A failure is only logged, since the batch is already in the table."""
        every = self._compact_every
        if every is None:
            setting = table.metadata().configuration.get(COMPACT_KEY, "")
            every = int(setting) if setting.isdecimal() else 0
        if not every or (version + 1) % every:
            return
        try:
            self.compact()
        except (AvowError, OSError, ValueError, _deltalake().exceptions.DeltaError) as failure:  # Arrow's are the third
            LOG.warning("compaction of %s failed, no rows are affected: %s", self._folder, failure)

    def compact(self) -> int:
        return compact(self._open(), self._folder, self.schema(), compression=self._compression)

    def committed(self, app_id: str) -> int | None:
        if not _deltalake().DeltaTable.is_deltatable(self._folder):
            return None
        found = self._open().transaction_version(app_id)
        return None if found is None else int(found)

    def schema(self) -> pa.Schema:
        return _arrow(self._open())

    def files(self) -> list[str]:
        table = self._open()
        unknown = set(table.protocol().reader_features or ()) - READER_FEATURES
        mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
        if unknown or mapped:
            raise InvalidRequest(
                f"{self._folder} uses {', '.join(sorted(unknown)) or 'columnMapping'}, so its files alone do not hold "
                "its rows; nothing was read. Read it with Spark's delta package"
            )
        return list(table.file_uris())

    def count(self) -> int:
        return int(self._open().count())

    def ranges(self) -> Iterator[Range]:
        import pyarrow as pa

        table = self._open()
        if not set(LANES) <= set(table.metadata().partition_columns):
            raise InvalidRequest(
                f"{self._folder} is not partitioned by {QUEUE} and {LANE}, so its metadata does not show which "
                f"versions it holds; nothing was read. Write archives with partition_by={LANES}"
            )
        names = [f"partition.{QUEUE}", f"partition.{LANE}", f"min.{VERSION}", f"max.{VERSION}", "num_records"]
        actions = pa.table(table.get_add_actions(flatten=True))
        if not actions.num_rows:
            return
        for row in actions.select(names).to_pylist():
            if None not in row.values():
                yield Range(*(row[name] for name in names))

    def clean(self, *, older_than_s: float) -> int:
        hours = math.ceil(older_than_s / 3600)
        removed = self._open().vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        return len(removed)

    def _open(self) -> DeltaTable:
        deltalake = _deltalake()
        try:
            table: DeltaTable = deltalake.DeltaTable(self._folder)
        except deltalake.exceptions.TableNotFoundError:
            raise Refused(f"{self._folder} is not a Delta table; nothing was read or changed") from None
        except deltalake.exceptions.DeltaError as failure:
            raise Refused(f"the log of {self._folder} cannot be read: {failure}; nothing was changed") from failure
        return table

    def _sync_log(self, *, after: int) -> None:
        """Syncs entries and checkpoints after version `after`, and the file that names the last checkpoint."""
        log = os.path.join(self._folder, DELTA_LOG)
        for name in os.listdir(log):
            number = name.partition(".")[0]
            if not number.isdigit() or int(number) > after:
                _sync_file(os.path.join(log, name))
        sync_folder(log)


def _add(table: DeltaTable, staged: Sequence[Staged], *, app_id: str, version: int) -> Exception | None:
    deltalake, refused = _deltalake(), None
    now_ms = int(time.time() * 1000)
    once = deltalake.transaction.CommitProperties(
        app_transactions=[deltalake.Transaction(app_id=app_id, version=version)]
    )
    try:
        table.create_write_transaction(
            [_action(each, now_ms=now_ms) for each in staged],
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=once,
        )
    except deltalake.exceptions.CommitFailedError as refusal:
        refused = refusal
    except (deltalake.exceptions.DeltaError, OSError) as failure:
        raise Unknown(
            f"batch {version} of {app_id} may or may not be in {table.table_uri}: {failure}. "
            "Write the batch again under the same name"
        ) from failure
    return refused


def _action(each: Staged, *, now_ms: int) -> Any:
    return _deltalake().transaction.AddAction(
        path=each.place,
        size=each.size_bytes,
        partition_values=each.values,
        modification_time=now_ms,
        data_change=True,
        stats=stats_text(each),
    )


def _arrow(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    return schemas.normal(pa.schema(table.schema().to_arrow()))


def _sync_file(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # a temporary file of another writer
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _deltalake() -> Any:
    schemas.require_pyarrow()
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError:
        raise NotInstalled("a Delta table", extra="spark") from None
    return deltalake
