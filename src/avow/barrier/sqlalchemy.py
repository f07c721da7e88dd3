"""The barrier on SQLAlchemy: an Engine, a Connection or a Session, and their asyncio counterparts.

    with Barrier(gid).transaction(engine) as connection: ...      in a new transaction; also with a Session
    Barrier(gid).insert(session)                                  in the transaction of a Session or Connection
    Barrier.from_query(request.args).once(session)
    check_back(engine, gid)

    async with AsyncBarrier(gid).transaction(async_engine) as connection: ...
    await AsyncBarrier(gid).insert(async_session)
    await check_back_async(async_engine, gid)

The rules are those of sql_rules.py, also for asyncio. Statements are executed by SQLAlchemy, with its logging, its
events and its errors.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias, overload

from avow.barrier import schema, sql_rules
from avow.barrier.cleanup import ROWS_MAX, clean_up_rows
from avow.barrier.db_connection import LOCKED, Outcome, lock_timeout_ms
from avow.barrier.dialects import MYSQL, POSTGRESQL, SQLITE, Trouble, dialect_of, trouble_of
from avow.barrier.key import LOCK_TIMEOUT_S, Key, Question, Verdict
from avow.errors import AvowError, InvalidRequest, NotInstalled

try:
    from sqlalchemy import Connection, Engine, text
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session as OrmSession
except ImportError as cause:
    raise NotInstalled("the barrier with SQLAlchemy", extra="sqlalchemy") from cause

Place: TypeAlias = Connection | OrmSession
AsyncPlace: TypeAlias = AsyncConnection | AsyncSession
Source: TypeAlias = Engine | Connection | OrmSession
AsyncSource: TypeAlias = AsyncEngine | AsyncConnection | AsyncSession


class SqlAlchemySession:
    """A Connection as a session for sql_rules.py."""

    def __init__(self, connection: Connection, *, table: str) -> None:
        self._connection = connection
        self._dialect = dialect_of(connection.dialect.name)
        self.statements = self._dialect.on(table)
        self._begun = False  # by a statement, because the connection is in autocommit mode

    def must_join(self) -> SqlAlchemySession:
        if not self._connection.in_transaction():
            self._connection.begin()
        if self._autocommits():
            raise InvalidRequest(
                "the connection is in autocommit mode (AUTOCOMMIT), so the barrier row would not be committed together "
                "with your work; nothing was written. Use another isolation level"
            )
        return self

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, expected: Iterable[Trouble] = ()
    ) -> Outcome:
        try:
            result = self._connection.execute(text(sql), dict(parameters or {}))
            found = tuple(tuple(row) for row in result) if result.returns_rows else ()
            return Outcome(found, result.rowcount)
        except DBAPIError as error:
            trouble = trouble_of(error, self._dialect)
            if not trouble or trouble not in expected:
                raise
            return Outcome(trouble=trouble)

    def begin(self, *, wait_s: float, write: bool) -> Trouble:
        if not self._connection.in_transaction():
            self._connection.begin()
        if self._autocommits() or (self._dialect is SQLITE and not self._sqlite().in_transaction):
            first = {SQLITE: "begin immediate" if write else "begin", MYSQL: "start transaction"}
            trouble = self.execute(first.get(self._dialect, "begin"), expected=LOCKED).trouble
            if trouble:
                self.rollback()
                return trouble
            self._begun = True
        if self._dialect is POSTGRESQL:
            self.execute("set transaction isolation level read committed")
            self.execute(f"set local lock_timeout = {lock_timeout_ms(wait_s)}")
        return ""

    def commit(self) -> Trouble:
        trouble: Trouble = ""
        if self._begun:
            trouble = self.execute("commit", expected=LOCKED).trouble
            self._begun = bool(trouble)
        if not trouble:
            self._connection.commit()
        return trouble

    def rollback(self) -> None:
        begun, self._begun = self._begun, False
        with suppress(SQLAlchemyError):  # the connection was lost: the server rolls back
            if begun and not self._connection.invalidated:
                self.execute("rollback")
            self._connection.rollback()

    def _autocommits(self) -> bool:
        if self._dialect is SQLITE:  # also if an event listener sends BEGIN, as SQLAlchemy's documentation recommends
            return self._sqlite().isolation_level is None and not self._sqlite().in_transaction
        return self._connection.dialect.detect_autocommit_setting(self._connection.connection.dbapi_connection)  # type: ignore[arg-type]

    def _sqlite(self) -> Any:
        return self._connection.connection.driver_connection


class Barrier(sql_rules.SqlCall):
    """As avow.barrier.sql.Barrier."""

    def insert(self, place: Place) -> None:
        _insert(place, self.key_to_commit(), self.table)

    def once(self, place: Place) -> bool:
        return _once(place, self.next_key(), self.table, self.prepared_ms)

    @contextmanager
    def transaction(self, source: Source) -> Iterator[Any]:
        """A new transaction; yields the Connection or the Session for your work."""
        key = self.key_to_commit()
        _must_be_idle(source)
        with source.begin() as begun:
            place: Any = begun if isinstance(source, Engine) else source
            _insert(place, key, self.table)
            yield place
            _must_still_be(place, key, self.table)

    def check_back(self, source: Source, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Verdict:
        _must_be_idle(source)
        with _connected(source) as connection:
            session = SqlAlchemySession(connection, table=self.table)
            with sql_rules.short_waits(session, lock_timeout_s):
                return sql_rules.check_back(sql_rules.Checkback(session, self, lock_timeout_s=lock_timeout_s))


class AsyncBarrier(sql_rules.SqlCall):
    """As Barrier, on an AsyncEngine, an AsyncConnection or an AsyncSession."""

    async def insert(self, place: AsyncPlace) -> None:
        await place.run_sync(_insert, self.key_to_commit(), self.table)

    async def once(self, place: AsyncPlace) -> bool:
        return await place.run_sync(_once, self.next_key(), self.table, self.prepared_ms)

    @asynccontextmanager
    async def transaction(self, source: AsyncSource) -> AsyncIterator[Any]:
        key = self.key_to_commit()
        _must_be_idle(source)
        async with source.begin() as begun:
            place: Any = begun if isinstance(source, AsyncEngine) else source
            await place.run_sync(_insert, key, self.table)
            yield place
            await place.run_sync(_must_still_be, key, self.table)

    async def check_back(self, source: AsyncSource, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Verdict:
        """After a cancellation or a database error the connection is invalidated, because its state is unknown."""
        _must_be_idle(source)
        async with _connected_async(source) as connection:
            try:
                return await self._ask(connection, lock_timeout_s)
            except AvowError:
                raise
            except BaseException:
                await connection.invalidate()
                raise

    async def _ask(self, connection: AsyncConnection, lock_timeout_s: float) -> Verdict:
        session = await connection.run_sync(SqlAlchemySession, table=self.table)
        restore = await connection.run_sync(lambda _: sql_rules.shorten_waits(session, lock_timeout_s))
        try:
            return await _answer(connection, sql_rules.Checkback(session, self, lock_timeout_s=lock_timeout_s))
        finally:
            if not isinstance(sys.exception(), asyncio.CancelledError):
                await connection.run_sync(lambda _: sql_rules.restore_waits(session, restore))


async def _answer(connection: AsyncConnection, checkback: sql_rules.Checkback) -> Verdict:
    verdict = await connection.run_sync(lambda _: checkback.ask())
    while verdict is None:  # `ask` ends it after the timeout
        await asyncio.sleep(checkback.pause_s())
        verdict = await connection.run_sync(lambda _: checkback.ask())
    return verdict


def _insert(place: Place, key: Key, table: str) -> None:
    sql_rules.insert_own(_joined(place, table), key)


def _once(place: Place, key: Key, table: str, prepared_ms: int | None) -> bool:
    return sql_rules.insert_once(_joined(place, table), key, prepared_ms=prepared_ms)


def _must_still_be(place: Place, key: Key, table: str) -> None:
    if isinstance(place, OrmSession):
        place.flush()
    sql_rules.must_still_be(_joined(place, table), key)


def _joined(place: Place, table: str) -> SqlAlchemySession:
    connection = place.connection() if isinstance(place, OrmSession) else place
    return SqlAlchemySession(connection, table=table).must_join()


def _must_be_idle(source: Source | AsyncSource) -> None:
    if not isinstance(source, Engine | AsyncEngine) and source.in_transaction():
        raise InvalidRequest(
            f"the {type(source).__name__} is in a transaction, but this call needs its own; nothing was done. Commit "
            "or roll back first, or use the engine"
        )


@contextmanager
def _connected(source: Source) -> Iterator[Connection]:
    bind = source.get_bind() if isinstance(source, OrmSession) else source
    if isinstance(bind, Connection):
        _must_be_idle(bind)
        yield bind
    else:
        with bind.connect() as connection:
            yield connection


@asynccontextmanager
async def _connected_async(source: AsyncSource) -> AsyncIterator[AsyncConnection]:
    if isinstance(source, AsyncConnection):
        yield source
        return
    async with _async_engine(source).connect() as connection:
        yield connection


def _async_engine(source: AsyncEngine | AsyncSession) -> AsyncEngine:
    if isinstance(source, AsyncEngine):
        return source
    bind = source.get_bind()
    if isinstance(bind, Connection):
        raise InvalidRequest("the AsyncSession is bound to a connection; nothing was done. Use the engine")
    return AsyncEngine(bind)


def check_back(
    source: Source, gid: str, *, prepared_ms: int | None = None, lock_timeout_s: float = LOCK_TIMEOUT_S, table: str = ""
) -> Verdict:
    """The outcome of the pledge's transaction. `prepared_ms`: as the coordinator sent it, if it did."""
    return Barrier(gid, prepared_ms=prepared_ms, table=table).check_back(source, lock_timeout_s=lock_timeout_s)


async def check_back_async(
    source: AsyncSource,
    gid: str,
    *,
    prepared_ms: int | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    table: str = "",
) -> Verdict:
    return await AsyncBarrier(gid, prepared_ms=prepared_ms, table=table).check_back(
        source, lock_timeout_s=lock_timeout_s
    )


@overload
def checkback(
    engine: Engine, *, lock_timeout_s: float = LOCK_TIMEOUT_S, table: str = ""
) -> Callable[[Question], Verdict]: ...


@overload
def checkback(
    engine: AsyncEngine, *, lock_timeout_s: float = LOCK_TIMEOUT_S, table: str = ""
) -> Callable[[Question], Awaitable[Verdict]]: ...


def checkback(
    engine: Engine | AsyncEngine, *, lock_timeout_s: float = LOCK_TIMEOUT_S, table: str = ""
) -> Callable[[Question], Any]:
    """For the routes in avow.barrier.web; with an AsyncEngine, for asynchronous ones."""

    def answer(question: Question) -> Any:
        known: Any = {"prepared_ms": question.prepared_ms, "lock_timeout_s": lock_timeout_s, "table": table}
        if isinstance(engine, AsyncEngine):
            return check_back_async(engine, question.gid, **known)
        return check_back(engine, question.gid, **known)

    return answer


def create_table(source: Source, *, table: str = "") -> None:
    _must_be_idle(source)
    with _connected(source) as connection:
        schema.create(SqlAlchemySession(connection, table=table))


async def create_table_async(source: AsyncSource, *, table: str = "") -> None:
    _must_be_idle(source)
    async with _connected_async(source) as connection:
        await connection.run_sync(lambda blocking: schema.create(SqlAlchemySession(blocking, table=table)))


def clean_up(source: Source, older_than_s: float, *, rows_max: int = ROWS_MAX, table: str = "") -> int:
    _must_be_idle(source)
    with _connected(source) as connection:
        session = SqlAlchemySession(connection, table=table)
        return clean_up_rows(session, older_than_s=older_than_s, rows_max=rows_max)


async def clean_up_async(source: AsyncSource, older_than_s: float, *, rows_max: int = ROWS_MAX, table: str = "") -> int:
    def clean(blocking: Connection) -> int:
        return clean_up(blocking, older_than_s, rows_max=rows_max, table=table)

    _must_be_idle(source)
    async with _connected_async(source) as connection:
        return await connection.run_sync(clean)
