"""The stages of an audit as DataFrames: each with a column `id`, pledges also with `status`.

Two small data sources read databases and the coordinator, in one task each, a page of rows at a time. No rows pass
through the driver, so their number does not matter. A database is read with one statement, which sees one snapshot.

A row without an id (for example a message whose JSON lacks it) gets the id `(no id)`, with its place if that is known,
and is reported as orphaned.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from avow.barrier.dialects import dialect_of
from avow.barrier.key import COMMITTED, OWN_BRANCH, OWN_OP
from avow.client.client import connect
from avow.errors import InvalidRequest, NotInstalled
from avow.spark.pipelines.audit_rules import Stage
from avow.spark.pipelines.audit_spec import AuditSpec, BarrierInput, id_expression
from avow.spark.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SQL_FORMAT: Final = "avow-audit-sql"
PLEDGES_FORMAT: Final = "avow-audit-pledges"
NO_ID: Final = "(no id)"
PAGE_ROWS: Final = 10_000
_DATABASES: Final = "sqlite:PATH, postgresql://user@host:port/db or mysql://user@host:port/db"


def register(spark: SparkSession) -> None:
    spark.dataSource.register(SqlSource)
    spark.dataSource.register(PledgeSource)


def frames(spark: SparkSession, spec: AuditSpec) -> dict[Stage, DataFrame]:
    """Lazy: Spark reads the stages when they are compared. Call `register` before."""
    found: dict[Stage, DataFrame] = {}
    if spec.business is not None:
        found["business"] = _named(_queried(spark, spec.business.database, spec.business.query), "id")
    if spec.barrier is not None:
        query = barrier_query(spec.barrier)
        gids = _queried(spark, spec.barrier.database, query).withColumnRenamed("id", "gid")
        found["barrier"] = _named(gids, id_expression(spec.barrier.id))
    if spec.pledges is not None:
        pledges = spark.read.format(PLEDGES_FORMAT).options(**spec.access(spec.pledges)).load()
        found["pledges"] = _named(pledges, id_expression(spec.pledges.id), "status")
    if spec.queue is not None:
        found["queue"] = _messages(spark, spec)
    if spec.table is not None:
        found["table"] = _named(open_table(spec.table.url).rows(spark), id_expression(spec.table.id))
    return found


def _queried(spark: SparkSession, database: str, query: str) -> DataFrame:
    return spark.read.format(SQL_FORMAT).options(database=database, query=query).load()


def _messages(spark: SparkSession, spec: AuditSpec) -> DataFrame:
    queue = spec.queue
    assert queue is not None
    options = {"subscribe": queue.name, **spec.access(queue), **queue.options}
    if queue.archive is not None:
        options["archive"] = queue.archive
    messages = spark.read.format("avow").options(**options).load()
    place = f"concat('{NO_ID} ', topic, '/', partition, ' version ', offset)"
    return messages.select(F.expr(f"coalesce({id_expression(queue.id)}, {place})").alias("id"))


def _named(rows: DataFrame, expression: str, *others: str) -> DataFrame:
    return rows.select(F.expr(f"coalesce({expression}, '{NO_ID}')").alias("id"), *others)


def barrier_query(barrier: BarrierInput) -> str:
    scheme = urlsplit(barrier.database).scheme.partition("+")[0]
    table = barrier.table or dialect_of(scheme).table
    return f"select gid from {table} where branch_id = '{OWN_BRANCH}' and op = '{OWN_OP}' and reason = '{COMMITTED}'"


# ------------------------------------------------------------------------------------------------------- databases


class SqlSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return SQL_FORMAT

    def schema(self) -> str:
        return "id string"

    def reader(self, schema: Any) -> SqlReader:  # noqa: ARG002 - Spark's signature
        return SqlReader(self.options["database"], self.options["query"])


class OnePart(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]


class SqlReader(OnePart):
    def __init__(self, database: str, query: str) -> None:
        self._database, self._query = database, query

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        for rows in query_rows(self._database, self._query):
            ids = [None if row[0] is None else str(row[0]) for row in rows]
            yield pa.record_batch([pa.array(ids, pa.string())], names=["id"])


def query_rows(database: str, query: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yields the rows of a statement in pages."""
    with closing(_connection(database)) as connection, closing(_cursor(connection)) as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(PAGE_ROWS):
            yield list(rows)


def _connection(database: str) -> Any:
    scheme, _, rest = database.partition(":")
    if scheme == "sqlite":
        path = rest.removeprefix("///")  # SQLAlchemy's notation
        return sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
    if scheme.startswith(("postgresql", "postgres")):
        return _library("psycopg", extra="spark").connect(f"postgresql:{rest}")
    if scheme.startswith("mysql"):
        parts = urlsplit(f"mysql:{rest}")
        given = {"host": parts.hostname, "port": parts.port or 3306, "user": parts.username}
        pymysql = _library("pymysql", extra="mysql")
        return pymysql.connect(**given, password=parts.password or "", database=parts.path.strip("/"))
    raise InvalidRequest(f"{scheme!r} is not a database that can be audited; nothing was read. Use {_DATABASES}")


def _cursor(connection: Any) -> Any:
    """A server-side cursor, if the database has a server."""
    kind = type(connection).__module__
    if kind.startswith("psycopg"):
        return connection.cursor(name="avow_audit")
    if kind.startswith("pymysql"):
        from pymysql.cursors import SSCursor

        return connection.cursor(SSCursor)
    return connection.cursor()


def _library(name: str, *, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise NotInstalled("this database", extra=extra) from None


# --------------------------------------------------------------------------------------------------------- pledges


class PledgeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return PLEDGES_FORMAT

    def schema(self) -> str:
        return "gid string, status string"

    def reader(self, schema: Any) -> PledgeReader:  # noqa: ARG002 - Spark's signature
        return PledgeReader({name.lower(): value for name, value in self.options.items()})


class PledgeReader(OnePart):
    def __init__(self, access: Mapping[str, str]) -> None:
        self._access = dict(access)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        gids, statuses = asyncio.run(self._read())
        yield pa.record_batch([pa.array(gids, pa.string()), pa.array(statuses, pa.string())], names=["gid", "status"])

    async def _read(self) -> tuple[list[str], list[str]]:
        """A pledge that changes while pages are read may occur twice; the first occurrence is the newer one."""
        access, found, position = self._access, dict[str, str](), ""
        async with await connect(access["servers"], token=access.get("token"), ca=access.get("ca")) as client:
            while True:
                page = await client.pledges(position=position)
                for pledge in page.pledges:
                    found.setdefault(pledge.gid, pledge.status)
                position = page.next_position
                if not position:
                    return list(found), list(found.values())
