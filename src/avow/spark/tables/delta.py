"""A Delta table, written through `deltalake`: no package of the JVM is needed.

Tasks write data files below the table's folder; Delta shows only files that its log names, so they are invisible. The
commit adds one entry to the log: all files of the batch, and Delta's own note `txn(app_id, version)`. The entry
appears whole or not at all (a file linked under a name that must not exist), so this is the state after a kill -9:

    killed                         log                  the replayed batch
    while tasks write              nothing              writes new files; the old ones are leftovers
    before the entry               nothing              the same
    after the entry                files and txn        finds txn >= version, adds nothing; its files are leftovers

Other writers may commit at the same moment: deltalake moves our entry behind theirs. It refuses if theirs carries our
app_id (a driver thought dead) or changed the schema: we look again, and find the version there or try once more.

Leftovers are what a full vacuum removes. They look like the files of a batch that is being written, so only files
older than any batch can take may go: `clean(older_than_s=...)`, a day by default. deltalake does not sync the log; we
do, for a queue may be trimmed after a commit.

Opening a table costs what its log has since the last checkpoint, and with every batch it is opened: so tables made here
have a checkpoint every ten commits (deltalake's default is a hundred), and small files are put together every now and
then (`compacting`). A table that somebody else made is left as it is, unless the option `compact` asks for it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from avow.errors import AvowError, InvalidRequest, NotInstalled, Refused, Unknown
from avow.spark.tables import schemas
from avow.spark.tables.address import DELTA_LOG, Address
from avow.spark.tables.compacting import compact, stats_text
from avow.spark.tables.files import sync_folder, write_files
from avow.spark.tables.ranges import LANE, LANES, QUEUE, VERSION, Range
from avow.spark.tables.store import Staged, check_name

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

LOG = logging.getLogger("avow.spark")
COMMIT_ATTEMPTS = 10
CHECKPOINT_EVERY = 10
COMPACT_EVERY = 200
COMPACT_KEY = "avow.compactEvery"
READER_FEATURES = frozenset({"timestampNtz"})  # further ones mean that data files alone are not the rows


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
            raise InvalidRequest(f"{self._folder} holds files and is no Delta table; nothing was changed")
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
        """Raises Unknown if the log did not take it: then nothing of this call is in the table, but a driver thought
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
            f"batch {version} of {app_id} is not in {self._folder}: its log refused it {COMMIT_ATTEMPTS} times, "
            f"at last with: {refusal}. Write the batch again under the same name"
        )

    def _compact_if_due(self, table: DeltaTable, version: int) -> None:
        """Nothing that goes wrong here is a reason to fail a batch, which is in the table."""
        every = self._compact_every
        if every is None:
            said = table.metadata().configuration.get(COMPACT_KEY, "")
            every = int(said) if said.isdecimal() else 0
        if not every or (version + 1) % every:
            return
        try:
            self.compact()
        except (AvowError, OSError, ValueError, _deltalake().exceptions.DeltaError) as failure:  # Arrow's are the third
            LOG.warning("small files of %s were not put together, all rows are there: %s", self._folder, failure)

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
                f"{self._folder} uses {', '.join(sorted(unknown)) or 'columnMapping'}, so its files are not its rows: "
                "read it with Spark's delta package"
            )
        return list(table.file_uris())

    def count(self) -> int:
        return int(self._open().count())

    def ranges(self) -> Iterator[Range]:
        import pyarrow as pa

        table = self._open()
        if not set(LANES) <= set(table.metadata().partition_columns):
            raise InvalidRequest(
                f"{self._folder} is not partitioned by {QUEUE} and {LANE}, so it cannot tell what it holds of a lane "
                f"without reading all of it. Write archives with partition_by={LANES}"
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
            raise Refused(f"{self._folder} holds no Delta table; nothing was read or changed") from None
        except deltalake.exceptions.DeltaError as failure:
            raise Refused(f"the log of {self._folder} cannot be read: {failure}; nothing was changed") from failure
        return table

    def _sync_log(self, *, after: int) -> None:
        """Entries and checkpoints behind version `after`, and what says which checkpoint is the last."""
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
