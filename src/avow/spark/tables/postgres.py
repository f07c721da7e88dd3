"""A table of a PostgreSQL database.

A task copies its rows into a staging table of its own, which is created, filled and registered in one transaction. The
table is unlogged, since its rows are written again by the commit. A crash of the server empties unlogged tables, so the
commit checks the number of rows that it moves. The driver's commit is one transaction:

    1  set the last version of app_id if it is lower than this one; otherwise the batch was written before: end
    2  move the rows from the staging tables; if their number differs from what the tasks counted, roll back
    3  store the version ranges that an archive holds of each lane
    4  drop the staging tables of this and earlier batches, including leftovers of failed attempts

    killed                     state                                   the replayed batch
    a task, while it copies    nothing                                 copies again
    the driver, before commit  staging tables, registered              copies again; step 4 drops both
    after commit               rows, version                           copies, finds the version, moves nothing;
                                                                       the next commit drops its tables
    the server, at any time    one of these, staging tables empty      count differs: rolled back, replayed

The schema of the table also holds avow_table_versions, avow_table_ranges, avow_table_stages, and temporarily
avow_stage_{id}.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from avow.errors import InvalidRequest, NotInstalled, Offline, Refused, Unknown
from avow.spark.tables import postgres_copy, schemas, version_ranges
from avow.spark.tables.address import Address
from avow.spark.tables.data_files import ranges_of
from avow.spark.tables.store import Staged, check_name
from avow.spark.tables.version_ranges import Range

try:
    import psycopg
    from psycopg import sql
except ImportError:
    psycopg = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import pyarrow as pa

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

READ_ROWS: Final = 10_000
CONNECT_TIMEOUT_S: Final = 20

_TABLES: Final = (
    """create table if not exists {versions} (table_name text, app_id text, version bigint not null,
       primary key (table_name, app_id))""",
    """create table if not exists {stages} (place text primary key, table_name text not null, app_id text not null,
       version bigint not null, made timestamptz not null default now())""",
    """create table if not exists {ranges} (table_name text, queue text, lane integer, first bigint,
       last bigint not null, rows bigint not null, primary key (table_name, queue, lane, first))""",
)
_ADVANCE: Final = """insert into {versions} as known values (%s, %s, %s) on conflict (table_name, app_id)
    do update set version = excluded.version where known.version < excluded.version returning version"""
_COLUMNS: Final = """select attname::text, format_type(atttypid, atttypmod) from pg_attribute
    where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum"""


class PostgresStore:
    def __init__(self, address: Address) -> None:
        self._place, self._schema, self._table = address.place, address.schema, address.table
        self._where = f"the table {address.schema}.{address.table}"

    def prepare(self, schema: pa.Schema, *, partition_by: Sequence[str] | None) -> list[str]:
        if partition_by:
            raise InvalidRequest("a writer cannot partition a table of PostgreSQL; nothing was changed")
        schema = schemas.normal(schema)
        types = [(field.name, postgres_copy.sql_type(field.name, field.type)) for field in schema]
        with self._connected() as connection:
            _lock(connection, self._schema)
            for statement in _TABLES:
                connection.execute(self._sql(statement))
            if not self._columns(connection):
                columns = sql.SQL(", ").join(_column(name, kind) for name, kind in types)
                connection.execute(self._sql("create table {target} ({columns})", columns=columns))
            self._check(connection, types)
        return []

    def _check(self, connection: Connection, types: list[tuple[str, str]]) -> None:
        """Lets the server check whether each column accepts values of the type."""
        known = dict(self._columns(connection))
        missing = [name for name, _ in types if name not in known]
        if missing:
            raise InvalidRequest(f"{self._where} has no column {', '.join(missing)}; nothing was written")
        names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in types)
        nulls = sql.SQL(", ").join(sql.SQL("null::") + sql.SQL(kind) for _, kind in types)
        try:
            connection.execute(self._sql("insert into {target} ({n}) select {v} where false", n=names, v=nulls))
        except psycopg.errors.DatatypeMismatch as wrong:
            reason = wrong.diag.message_primary
            raise InvalidRequest(f"these rows do not fit {self._where}: {reason}. Nothing was written") from None

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
        del partition_by
        place = f"avow_stage_{uuid.uuid4().hex}"
        with self._connected() as connection:
            connection.execute("set local synchronous_commit to off")  # the commit notices rows lost in a crash
            types = [
                _column(each.name, postgres_copy.sql_type(each.name, each.type)) for each in schemas.normal(schema)
            ]
            parts = {"stage": self._name(place), "columns": sql.SQL(", ").join(types)}
            connection.execute(self._sql("create unlogged table {stage} ({columns})", **parts))
            rows, held = self._copy(connection, batches, place)
            if not rows:
                connection.rollback()
                return []
            noted = "insert into {stages} (place, table_name, app_id, version) values (%s, %s, %s, %s)"
            connection.execute(self._sql(noted), (place, self._table, app_id, version))
        return [Staged(place, rows, ranges=tuple(held))]

    def _copy(self, connection: Connection, batches: Iterable[pa.RecordBatch], place: str) -> tuple[int, list[Range]]:
        import pyarrow as pa

        rows, held = 0, list[Range]()
        into = self._sql("copy {stage} from stdin (format binary)", stage=self._name(place))
        with connection.cursor() as cursor, cursor.copy(into) as copy:
            copy.write(postgres_copy.HEADER)
            for batch in map(postgres_copy.normal_batch, batches):
                copy.write(postgres_copy.copy_rows(batch))
                held = version_ranges.merged([*held, *ranges_of(pa.Table.from_batches([batch]))])
                rows += batch.num_rows
            copy.write(postgres_copy.TRAILER)
        return rows, held

    def commit(self, staged: Sequence[Staged], *, app_id: str, version: int) -> bool:
        check_name(app_id=app_id, version=version)
        try:
            with self._connection() as connection:
                return self._move(connection, staged, app_id=app_id, version=version)
        except psycopg.Error as failure:
            raise Unknown(
                f"batch {version} of {app_id} may or may not be in {self._where}: {failure}. "
                "Write the batch again under the same name"
            ) from failure

    def _move(self, connection: Connection, staged: Sequence[Staged], *, app_id: str, version: int) -> bool:
        _lock(connection, f"{self._schema}.{self._table}")
        if connection.execute(self._sql(_ADVANCE), (self._table, app_id, version)).fetchone() is None:
            return False
        for each in staged:
            found = connection.execute(self._sql("select * from {stage} limit 0", stage=self._name(each.place)))
            names = sql.SQL(", ").join(sql.Identifier(column.name) for column in found.description or ())
            parts = {"names": names, "stage": self._name(each.place)}
            moved = connection.execute(self._sql("insert into {target} ({names}) select {names} from {stage}", **parts))
            if moved.rowcount != each.rows:
                raise Unknown(
                    f"a task staged {each.rows} rows of batch {version}, of which {moved.rowcount} are left: the "
                    "server crashed in between. This call committed nothing; write the batch again under the same name"
                )
        self._note_ranges(connection, [held for each in staged for held in each.ranges])
        old = "delete from {stages} where table_name = %s and app_id = %s and version <= %s returning place"
        self._drop(connection, connection.execute(self._sql(old), (self._table, app_id, version)).fetchall())
        return True

    def _note_ranges(self, connection: Connection, held: list[Range]) -> None:
        for queue, lane in sorted({(each.queue, each.lane) for each in held}):
            where = (self._table, queue, lane)
            gone = "delete from {ranges} where table_name = %s and queue = %s and lane = %s returning first, last, rows"
            known = [Range(queue, lane, *row) for row in connection.execute(self._sql(gone), where).fetchall()]
            new = [each for each in held if (each.queue, each.lane) == (queue, lane)]
            for each in version_ranges.merged([*known, *new]):
                values = (*where, each.first, each.last, each.rows)
                connection.execute(self._sql("insert into {ranges} values (%s, %s, %s, %s, %s, %s)"), values)

    def committed(self, app_id: str) -> int | None:
        with self._connected() as connection:
            if not self._exists(connection, "avow_table_versions"):
                return None
            asked = self._sql("select version from {versions} where table_name = %s and app_id = %s")
            row = connection.execute(asked, (self._table, app_id)).fetchone()
        return None if row is None else int(row[0])

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        with self._connected() as connection:
            columns = self._columns(connection)
        if not columns:
            raise Refused(f"{self._where} does not exist; nothing was read")
        return pa.schema([pa.field(name, postgres_copy.arrow_type(kind)[0]) for name, kind in columns])

    def read(self) -> Iterator[pa.RecordBatch]:
        """All rows, from one snapshot."""
        import pyarrow as pa

        schema = self.schema()
        with self._connected() as connection:
            kinds = dict(self._columns(connection))
            shown = [
                sql.Identifier(name) + sql.SQL("::text" if postgres_copy.arrow_type(kinds[name])[1] else "")
                for name in schema.names
            ]
            asked = self._sql("select {columns} from {target}", columns=sql.SQL(", ").join(shown))
            with connection.cursor(name="avow_rows", binary=True) as cursor:
                cursor.execute(asked)
                while rows := cursor.fetchmany(READ_ROWS):
                    columns = [
                        pa.array(values, field.type)
                        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def count(self) -> int:
        with self._connected() as connection:
            row = connection.execute(self._sql("select count(*) from {target}")).fetchone()
        return int(row[0]) if row else 0

    def ranges(self) -> Iterator[Range]:
        with self._connected() as connection:
            if not self._exists(connection, "avow_table_ranges"):
                return
            asked = self._sql("select queue, lane, first, last, rows from {ranges} where table_name = %s")
            for row in connection.execute(asked, (self._table,)).fetchall():
                yield Range(*row)

    def clean(self, *, older_than_s: float) -> int:
        with self._connected() as connection:
            if not self._exists(connection, "avow_table_stages"):
                return 0
            old = "table_name = %s and made < now() - make_interval(secs => %s)"
            gone = self._sql(f"delete from {{stages}} where {old} returning place")
            places = connection.execute(gone, (self._table, older_than_s)).fetchall()
            self._drop(connection, places)
        return len(places)

    def _drop(self, connection: Connection, places: Iterable[tuple[Any, ...]]) -> None:
        for (place,) in places:
            connection.execute(self._sql("drop table if exists {stage}", stage=self._name(place)))

    def _columns(self, connection: Connection) -> list[tuple[str, str]]:
        name = self._name(self._table).as_string(connection)
        return [(str(row[0]), str(row[1])) for row in connection.execute(_COLUMNS, (name,)).fetchall()]

    def _exists(self, connection: Connection, table: str) -> bool:
        row = connection.execute("select to_regclass(%s)", (self._name(table).as_string(connection),)).fetchone()
        return row is not None and row[0] is not None

    def _name(self, table: str) -> sql.Identifier:
        return sql.Identifier(self._schema, table)

    def _sql(self, text: str, **parts: sql.Composable) -> sql.Composed:
        own = {"versions": "avow_table_versions", "stages": "avow_table_stages", "ranges": "avow_table_ranges"}
        names = {key: self._name(table) for key, table in own.items()}
        return sql.SQL(text).format(target=self._name(self._table), **names, **parts)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A transaction that is rolled back unless its end is reached."""
        try:
            with self._connection() as connection:
                yield connection
        except psycopg.OperationalError as failure:
            raise Offline(f"{self._where} cannot be reached: {failure}; no row became visible") from failure
        except psycopg.Error as failure:
            raise Refused(f"{self._where}: {failure}; no row became visible") from failure

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        if psycopg is None:
            raise NotInstalled("a table of PostgreSQL", extra="spark")
        schemas.require_pyarrow()
        with psycopg.connect(self._place, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            yield connection


def _lock(connection: Connection, what: str) -> None:
    """Serializes the creation of tables in a schema, or commits to a table, until the end of the transaction."""
    connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"avow:{what}",))


def _column(name: str, kind: str) -> sql.Composable:
    return sql.Identifier(name) + sql.SQL(" " + kind)
