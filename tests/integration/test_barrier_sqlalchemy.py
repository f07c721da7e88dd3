"""The barrier on SQLAlchemy: engines, connections and sessions, blocking and asyncio, with every driver at hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.integration.barrier_databases import Database, new_gid

from avow.barrier.key import Question, Verdict
from avow.barrier.sqlalchemy import (
    AsyncBarrier,
    Barrier,
    check_back,
    check_back_async,
    checkback,
    clean_up,
    clean_up_async,
    create_table,
    create_table_async,
)
from avow.errors import AlreadyDecided, AlreadyExists, InvalidRequest, Trimmed

BLOCKING = [("sqlite", "pysqlite"), ("postgresql", "psycopg"), ("mariadb", "pymysql")]
ASYNCIO = [
    ("sqlite-wal", "aiosqlite"),
    ("postgresql", "asyncpg"),
    ("postgresql", "psycopg"),
    ("mariadb", "aiomysql"),
    ("mariadb", "asyncmy"),
]
ON_BLOCKING = pytest.mark.parametrize(("kind", "driver"), BLOCKING)
ON_ASYNCIO = pytest.mark.parametrize(("kind", "driver"), ASYNCIO)
DAY_S = 24 * 3600


@pytest.fixture
def engine(database: Database, driver: str) -> Iterator[Engine]:
    made = create_engine(database.url(driver))
    yield made
    assert made.pool.checkedout() == 0  # type: ignore[attr-defined]
    made.dispose()


def work(gid: str) -> Any:
    return text(f"insert into works values ('{gid}')")


@ON_BLOCKING
@pytest.mark.parametrize("source", ["engine", "connection", "session"])
def test_a_barrier_transaction_commits_row_and_work_or_neither(database: Database, engine: Engine, source: str) -> None:
    committed, failed, late = new_gid(), new_gid(), new_gid()
    with engine.connect() as connection, Session(engine) as session:
        place: Any = {"engine": engine, "connection": connection, "session": session}[source]
        with Barrier(committed).transaction(place) as tx:
            tx.execute(work(committed))
        with pytest.raises(ZeroDivisionError), Barrier(failed).transaction(place) as tx:
            fail_after(tx, failed)
        assert check_back(place, late) is Verdict.FAILURE
        with pytest.raises(AlreadyDecided), Barrier(late).transaction(place):
            pytest.fail("the block of a refused transaction ran")
        with pytest.raises(AlreadyExists), Barrier(committed).transaction(place):
            pytest.fail("the block of a refused transaction ran")
        assert [check_back(place, gid) for gid in (committed, failed)] == [Verdict.SUCCESS, Verdict.FAILURE]
    assert [database.worked(gid) for gid in (committed, failed, late)] == [1, 0, 0]


def fail_after(tx: Any, gid: str) -> None:
    tx.execute(work(gid))
    raise ZeroDivisionError


@ON_BLOCKING
@pytest.mark.parametrize("kept", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("place", ["connection", "session"])
def test_a_row_joins_the_transaction_that_is_open(
    database: Database, engine: Engine, place: str, *, kept: bool
) -> None:
    gid = new_gid()
    with engine.connect() if place == "connection" else Session(engine) as joined:
        joined.execute(work(gid))
        Barrier(gid).insert(joined)
        assert Barrier(gid, "01", "action").once(joined)
        (joined.commit if kept else joined.rollback)()
        assert Barrier(gid, "01", "action").once(joined) is not kept
        joined.rollback()
    assert check_back(engine, gid) is (Verdict.SUCCESS if kept else Verdict.FAILURE)
    assert database.worked(gid) == kept


@ON_BLOCKING
def test_an_open_transaction_is_ongoing_and_the_pool_gets_its_connection_back(
    database: Database, engine: Engine
) -> None:
    gid = new_gid()
    with engine.connect() as holder:
        Barrier(gid).insert(holder)
        for _ in range(3):  # asked by this thread, so it did not wait for the commit
            assert check_back(engine, gid) is Verdict.ONGOING
        assert engine.pool.checkedout() == 1  # type: ignore[attr-defined]
        holder.commit()
    assert check_back(engine, gid) is Verdict.SUCCESS
    database.wait_for_rest()


@ON_BLOCKING
def test_a_barrier_transaction_refuses_a_session_that_is_in_one(database: Database, engine: Engine) -> None:
    with Session(engine) as session, engine.connect() as connection:
        for place in (session, connection):
            place.execute(text("select 1"))
            for call in (lambda place=place: check_back(place, new_gid()), lambda place=place: create_table(place)):
                with pytest.raises(InvalidRequest, match="in a transaction"):
                    call()
            with pytest.raises(InvalidRequest), Barrier(new_gid()).transaction(place):
                pytest.fail("the block of a refused transaction ran")
            place.rollback()


@ON_BLOCKING
def test_an_engine_in_autocommit_answers_checkbacks_and_cannot_be_joined(database: Database, engine: Engine) -> None:
    gid, by_itself = new_gid(), engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(InvalidRequest, match="AUTOCOMMIT"), Barrier(gid).transaction(by_itself):
        pytest.fail("the block of a refused transaction ran")
    assert database.reasons(gid) == []
    assert check_back(by_itself, gid) is Verdict.FAILURE
    with engine.connect() as holder:
        other = new_gid()
        Barrier(other).insert(holder)
        assert check_back(by_itself, other) is Verdict.ONGOING
        holder.commit()
    assert check_back(by_itself, other) is Verdict.SUCCESS
    database.wait_for_rest()


@pytest.mark.parametrize(("kind", "driver"), [("postgresql", "psycopg"), ("mariadb", "pymysql")])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_engine_of_a_higher_isolation_level_answers_checkbacks(
    database: Database, engine: Engine, level: str
) -> None:
    strict = engine.execution_options(isolation_level=level)
    gid, never = new_gid(), new_gid()
    assert check_back(strict, never) is Verdict.FAILURE
    with Barrier(gid).transaction(strict):
        assert check_back(strict, gid) is Verdict.ONGOING
    assert check_back(strict, gid) is Verdict.SUCCESS
    with pytest.raises(AlreadyDecided), Barrier(never).transaction(strict):
        pytest.fail("the block of a refused transaction ran")


@pytest.mark.parametrize(("kind", "driver"), [("sqlite", "pysqlite")])
def test_an_engine_whose_listener_begins_transactions_works(database: Database, engine: Engine) -> None:
    """The recipe in SQLAlchemy's documents for SQLite."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    gid, failed = new_gid(), new_gid()
    with Barrier(gid).transaction(engine) as connection:
        connection.execute(work(gid))
        assert check_back(engine, gid, lock_timeout_s=0.05) is Verdict.ONGOING
    with pytest.raises(ZeroDivisionError), Barrier(failed).transaction(engine) as connection:
        fail_after(connection, failed)
    assert [check_back(engine, each) for each in (gid, failed)] == [Verdict.SUCCESS, Verdict.FAILURE]
    assert [database.worked(each) for each in (gid, failed)] == [1, 0]


@pytest.mark.parametrize(("kind", "driver"), [("postgresql", "psycopg")])
def test_an_error_that_the_block_swallows_does_not_pass_for_a_commit(database: Database, engine: Engine) -> None:
    gid = new_gid()
    with pytest.raises(DBAPIError), Barrier(gid).transaction(engine) as connection, suppress(DBAPIError):
        connection.execute(text("select 1 / 0"))
    assert check_back(engine, gid) is Verdict.FAILURE


@ON_BLOCKING
def test_the_table_is_created_and_cleaned_up(database: Database, engine: Engine) -> None:
    table = f"barrier_{time.time_ns()}"
    create_table(engine, table=table)
    create_table(engine, table=table)
    assert clean_up(engine, 8 * DAY_S, table=table) == 0
    with pytest.raises(Trimmed):
        check_back(engine, new_gid(), table=table)


def run_async(database: Database, driver: str, scenario: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def go() -> None:
        engine = create_async_engine(database.url(driver))
        try:
            await scenario(engine)
            assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        finally:
            await engine.dispose()

    asyncio.run(go())


@ON_ASYNCIO
@pytest.mark.parametrize("source", ["engine", "connection", "session"])
def test_asyncio_a_barrier_transaction_commits_row_and_work_or_neither(
    database: Database, driver: str, source: str
) -> None:
    committed, failed, late = new_gid(), new_gid(), new_gid()

    async def scenario(engine: AsyncEngine) -> None:
        async with engine.connect() as connection, AsyncSession(engine) as session:
            place: Any = {"engine": engine, "connection": connection, "session": session}[source]
            async with AsyncBarrier(committed).transaction(place) as tx:
                await tx.execute(work(committed))
            with pytest.raises(ZeroDivisionError):
                await fail_async(place, failed)
            assert await check_back_async(place, late) is Verdict.FAILURE
            with pytest.raises(AlreadyDecided):
                await fail_async(place, late)
            verdicts = [await check_back_async(place, gid) for gid in (committed, failed)]
            assert verdicts == [Verdict.SUCCESS, Verdict.FAILURE]

    run_async(database, driver, scenario)
    assert [database.worked(gid) for gid in (committed, failed, late)] == [1, 0, 0]


async def fail_async(place: Any, gid: str) -> None:
    async with AsyncBarrier(gid).transaction(place) as tx:
        await tx.execute(work(gid))
        raise ZeroDivisionError


@ON_ASYNCIO
@pytest.mark.parametrize("kept", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("place", ["connection", "session"])
def test_asyncio_a_row_joins_the_transaction_that_is_open(
    database: Database, driver: str, place: str, *, kept: bool
) -> None:
    gid = new_gid()

    async def scenario(engine: AsyncEngine) -> None:
        async with engine.connect() if place == "connection" else AsyncSession(engine) as joined:
            await joined.execute(work(gid))
            await AsyncBarrier(gid).insert(joined)
            branch = AsyncBarrier(gid, "01", "action")
            assert [await branch.once(joined), await branch.once(joined)] == [True, True]
            assert await check_back_async(engine, gid) is Verdict.ONGOING  # it did not wait for the commit
            await (joined.commit if kept else joined.rollback)()
            assert await AsyncBarrier(gid, "01", "action").once(joined) is not kept
            await joined.rollback()
        assert await check_back_async(engine, gid) is (Verdict.SUCCESS if kept else Verdict.FAILURE)

    run_async(database, driver, scenario)
    assert database.worked(gid) == kept
    database.wait_for_rest()


@ON_ASYNCIO
def test_asyncio_three_checkbacks_at_once_have_one_verdict(database: Database, driver: str) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        for commits in (True, False):
            gid = new_gid()
            async with engine.connect() as holder:
                await AsyncBarrier(gid).insert(holder)
                asked = [asyncio.create_task(check_back_async(engine, gid, lock_timeout_s=60)) for _ in range(3)]
                await asyncio.wait(asked, timeout=0.1)
                await (holder.commit if commits else holder.rollback)()
                verdicts = await asyncio.gather(*asked)
            assert verdicts == [Verdict.SUCCESS if commits else Verdict.FAILURE] * 3

    run_async(database, driver, scenario)


@ON_ASYNCIO
def test_asyncio_a_checkback_that_is_cancelled_leaves_no_connection_behind(database: Database, driver: str) -> None:
    gid = new_gid()

    async def scenario(engine: AsyncEngine) -> None:
        async with engine.connect() as holder:
            await AsyncBarrier(gid).insert(holder)
            for after_s in (0.0, 0.001, 0.003, 0.01, 0.05, 0.2):
                asked = asyncio.create_task(check_back_async(engine, gid, lock_timeout_s=1))
                await asyncio.wait([asked], timeout=after_s)
                asked.cancel()
                with suppress(asyncio.CancelledError):  # asyncmy swallows one that comes while it connects
                    assert await asked is Verdict.ONGOING
                assert engine.pool.checkedout() == 1  # type: ignore[attr-defined]
            await holder.commit()
        assert await check_back_async(engine, gid) is Verdict.SUCCESS

    run_async(database, driver, scenario)
    database.wait_for_rest()


@ON_ASYNCIO
def test_asyncio_settings_of_the_connection_are_as_before(database: Database, driver: str) -> None:
    asked = {
        "sqlite": "pragma busy_timeout",
        "postgresql": "select current_setting('lock_timeout')",
        "mysql": "select @@session.innodb_lock_wait_timeout",
    }[database.dialect]

    async def setting(connection: AsyncConnection) -> Any:
        found = (await connection.execute(text(asked))).scalar()
        await connection.rollback()
        return found

    async def scenario(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            before = await setting(connection)
            assert await check_back_async(connection, new_gid()) is Verdict.FAILURE
            assert not connection.in_transaction()
            assert await setting(connection) == before

    run_async(database, driver, scenario)


@ON_ASYNCIO
def test_asyncio_the_table_is_created_and_cleaned_up(database: Database, driver: str) -> None:
    table = f"barrier_{time.time_ns()}"

    async def scenario(engine: AsyncEngine) -> None:
        await create_table_async(engine, table=table)
        await create_table_async(engine, table=table)
        assert await clean_up_async(engine, 8 * DAY_S, table=table) == 0
        with pytest.raises(Trimmed):
            await checkback(engine, table=table)(Question(new_gid()))

    run_async(database, driver, scenario)
