"""Pledges of the asyncio client: SQLAlchemy's asyncio, Redis, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool
from tests.integration.barrier_databases import wait_until
from tests.integration.scripted_coordinator import ScriptedCoordinator, Service, served
from tests.services import Server

import avow
from avow.barrier import redis as redis_barrier
from avow.barrier import sqlalchemy
from avow.barrier.redis_scripts import Adjusted
from avow.client.client import Client
from avow.client.pledge import CommittedPending, Delivered, OutcomeUnknown, RolledBack
from avow.errors import InvalidRequest

WITHDRAW = text("update accounts set amount = amount - 30")


class SoldOut(Exception):
    pass


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator() as coordinator:
        yield coordinator


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


async def until(true: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, true)


@asynccontextmanager
async def bank(folder: Path, coordinator: ScriptedCoordinator) -> AsyncIterator[tuple[Client, AsyncEngine, Service]]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'bank.db'}", poolclass=NullPool)
    await sqlalchemy.create_table_async(engine)
    async with engine.begin() as connection:
        await connection.execute(text("create table accounts (amount integer)"))
        await connection.execute(text("insert into accounts values (100)"))
    loop = asyncio.get_running_loop()

    def asked(question: Any) -> Any:
        answered: Any = sqlalchemy.checkback(engine)(question)
        return asyncio.run_coroutine_threadsafe(answered, loop).result(10)

    with served(Service(asked)) as service:
        async with await avow.connect(coordinator.url, timeout_s=3.0) as client:
            yield client, engine, service
    await engine.dispose()
    await until(no_connection_is_left)


def no_connection_is_left() -> bool:
    """aiosqlite answers to the event loop from a thread for each connection; the loop must not be closed before."""
    return not any("_connection_worker_thread" in thread.name for thread in threading.enumerate())


async def amount(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int((await connection.execute(text("select amount from accounts"))).scalar_one())


def test_work_and_message_are_atomic_on_an_async_engine(tmp_path: Path, coordinator: ScriptedCoordinator) -> None:
    async def work() -> None:
        async with bank(tmp_path, coordinator) as (client, engine, service):
            pledge = client.pledge(wait_result=True).call(service.url + "/in", {"amount": 30})
            async with pledge.transaction(engine, checkback=service.url + "/checkback") as connection:
                await connection.execute(WITHDRAW)
            assert pledge.outcome == Delivered(pledge.gid)
            assert await pledge.current() == Delivered(pledge.gid)
            assert [call["gid"] for call in service.calls] == [pledge.gid]
            assert await amount(engine) == 70

    run(work)


def test_an_error_in_an_async_block_rolls_back(tmp_path: Path, coordinator: ScriptedCoordinator) -> None:
    async def work() -> None:
        async with bank(tmp_path, coordinator) as (client, engine, service):
            pledge = client.pledge().call(service.url + "/in", {"amount": 30})

            async def withdraw() -> None:
                async with pledge.transaction(engine, checkback=service.url + "/checkback") as connection:
                    await connection.execute(WITHDRAW)
                    raise SoldOut

            with pytest.raises(SoldOut):
                await withdraw()
            assert isinstance(pledge.outcome, RolledBack)
            assert await amount(engine) == 100
            await until(lambda: coordinator.pledge(pledge.gid).status == "failed")  # type: ignore[union-attr]
            assert not service.calls

    run(work)


def test_a_cancelled_block_is_decided_by_the_checkback(tmp_path: Path, coordinator: ScriptedCoordinator) -> None:
    async def work() -> None:
        async with bank(tmp_path, coordinator) as (client, engine, service):
            pledge = client.pledge().call(service.url + "/in", {"amount": 30})
            inside = asyncio.Event()

            async def transfer() -> None:
                async with pledge.transaction(engine, checkback=service.url + "/checkback") as connection:
                    await connection.execute(WITHDRAW)
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(transfer())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert isinstance(pledge.outcome, OutcomeUnknown)
            await until(lambda: coordinator.pledge(pledge.gid).status == "failed")  # type: ignore[union-attr]
            assert await amount(engine) == 100

    run(work)


def test_an_async_session_can_be_joined(tmp_path: Path, coordinator: ScriptedCoordinator) -> None:
    async def work() -> None:
        async with bank(tmp_path, coordinator) as (client, engine, service):
            pledge = client.pledge().call(service.url + "/in", {"amount": 30})
            async with AsyncSession(engine) as session:
                await session.execute(WITHDRAW)
                await pledge.join(session, checkback=service.url + "/checkback")
                with pytest.raises(InvalidRequest, match="Commit it first"):
                    await pledge.submit()
                await session.commit()
                assert isinstance(await pledge.submit(), CommittedPending)
            await until(lambda: len(service.calls) == 1)

    run(work)


def test_a_joined_async_session_that_was_rolled_back_delivers_nothing(
    tmp_path: Path, coordinator: ScriptedCoordinator
) -> None:
    async def work() -> None:
        async with bank(tmp_path, coordinator) as (client, engine, service):
            pledge = client.pledge().call(service.url + "/in", {"amount": 30})
            async with AsyncSession(engine) as session:
                await pledge.join(session, checkback=service.url + "/checkback")
                await session.rollback()
                assert isinstance(await pledge.submit(), RolledBack)
            assert not service.calls

    run(work)


def test_a_blocking_source_is_refused_before_anything_is_sent(coordinator: ScriptedCoordinator) -> None:
    import sqlite3

    async def work() -> None:
        async with await avow.connect(coordinator.url) as client:
            with pytest.raises(InvalidRequest, match="block the event loop"):
                await client.pledge().call("http://x/").join(sqlite3.connect(":memory:"), checkback="http://x/")
        assert not coordinator.operations("prepare")

    run(work)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_redis_supports_only_do_and_submit(coordinator: ScriptedCoordinator, redis_server: Server) -> None:
    async def work() -> None:
        async with redis.asyncio.from_url(redis_server.dsn) as stock, await avow.connect(coordinator.url) as client:
            with pytest.raises(InvalidRequest, match="do_and_submit"):
                async with client.pledge().call("http://x/").transaction(stock, checkback="http://x/"):
                    pytest.fail("it began")

    run(work)


@asynccontextmanager
async def shop(
    coordinator: ScriptedCoordinator, server: Server, key: str, units: int
) -> AsyncIterator[tuple[Client, Any, Service]]:
    blocking = redis.Redis.from_url(server.dsn)
    with served(Service(redis_barrier.checkback(blocking))) as service:
        async with (
            redis.asyncio.from_url(server.dsn) as stock,
            await avow.connect(coordinator.url, timeout_s=3.0) as client,
        ):
            await stock.set(key, units)
            yield client, stock, service
    blocking.close()


def selling(stock: Any, key: str) -> Callable[[redis_barrier.AsyncBarrier], Awaitable[Adjusted]]:
    async def sell(barrier: redis_barrier.AsyncBarrier) -> Adjusted:
        adjusted = await barrier.check_adjust(stock, key, -1)
        if adjusted is Adjusted.SHORT:
            raise SoldOut
        return adjusted

    return sell


def test_a_redis_script_and_a_message_are_atomic(coordinator: ScriptedCoordinator, redis_server: Server) -> None:
    async def work() -> None:
        async with shop(coordinator, redis_server, "{a}-together", 1) as (client, stock, service):
            checkback, sell = service.url + "/checkback", selling(stock, "{a}-together")
            sold = client.pledge().call(service.url + "/in", {"user": 1})
            outcome = await sold.do_and_submit(stock, sell, checkback=checkback)
            assert isinstance(outcome, CommittedPending)
            assert outcome.result == "DONE"
            refused = await client.pledge().call(service.url + "/in").do_and_submit(stock, sell, checkback=checkback)
            assert isinstance(refused, RolledBack)
            assert isinstance(refused.error, SoldOut)
            await until(lambda: [call["gid"] for call in service.calls] == [sold.gid])
            assert await stock.get("{a}-together") == b"0"

    run(work)


def test_work_in_redis_whose_answer_was_lost_is_delivered(
    coordinator: ScriptedCoordinator, redis_server: Server
) -> None:
    async def work() -> None:
        async with shop(coordinator, redis_server, "{a}-lost", 1) as (client, stock, service):

            async def sell(barrier: redis_barrier.AsyncBarrier) -> None:
                await barrier.check_adjust(stock, "{a}-lost", -1)
                raise ConnectionError("the answer was lost")

            pledge = client.pledge().call(service.url + "/in", {"user": 1})
            outcome = await pledge.do_and_submit(stock, sell, checkback=service.url + "/checkback")
            assert isinstance(outcome, CommittedPending)
            await until(lambda: [call["gid"] for call in service.calls] == [pledge.gid])

    run(work)
