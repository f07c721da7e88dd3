"""Servers that disappear, fall silent or refuse: the error that a caller gets; the store recovers by itself."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pymysql
import pytest
import redis as redis_client
from tests.contract.pledges.pledge_places import LEASE_MS, NOW_MS, PLACES, Place, pledge, progress, run, store_of
from tests.services import MariaDBServer, RedisServer, Server

from avow import limits
from avow.errors import AvowError, DiskFull, InvalidRequest, Offline, Refused, Unknown
from avow.pledge.store import Filter
from avow.pledge.stores.mysql import MySQLStore
from avow.pledge.stores.mysql_connection import arguments, check_server
from avow.pledge.stores.redis import RedisStore


@pytest.fixture(params=[name for name in PLACES if name != "memory"])
def real_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = PLACES[request.param]
    server = request.getfixturevalue(kind.server) if kind.server else None
    with kind.make(server, tmp_path) as made:
        yield made


def _execute(place: Place, *statements: str) -> None:
    """Something done to the database behind the store's back."""
    if place.url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(place.url.partition(":")[2])) as file:
            for statement in statements:
                file.execute(statement)
            file.commit()
    elif place.url.startswith("postgresql:"):
        with psycopg.connect(place.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())
    else:
        with contextlib.closing(pymysql.connect(**arguments(place.url), autocommit=True)) as link:
            for statement in statements:
                link.cursor().execute(statement)


@contextlib.contextmanager
def _redis(place: Place) -> Iterator[redis_client.Redis]:
    with contextlib.closing(redis_client.Redis.from_url(place.url.partition("#")[0])) as client:
        yield client


def _poison(place: Place) -> None:
    """From now on, the database itself refuses to store the gid `poison`."""
    if place.url.startswith("redis:"):
        with _redis(place) as client:
            client.set(f"{{{place.url.partition('#')[2]}}}:g:poison", "not a hash")
    elif place.url.startswith("sqlite:"):
        _execute(
            place,
            "CREATE TRIGGER poison BEFORE INSERT ON avow_pledges WHEN NEW.gid = CAST('poison' AS BLOB) "
            "BEGIN SELECT RAISE(ABORT, 'poison'); END",
        )
    else:
        _execute(place, "ALTER TABLE avow_pledges ADD CONSTRAINT poison CHECK (gid <> 'poison')")


def test_an_operation_that_the_database_refuses_does_not_fail_its_neighbours(real_place: Place) -> None:
    async def main() -> None:
        async with real_place.opened() as store:
            for n in range(10):
                await store.insert(pledge(f"old-{n}"))
            _poison(real_place)
            first = [store.insert(pledge(f"new-{n}")) for n in range(10)]
            swaps = [store.swap(pledge(f"old-{n}"), progress(text="swapped")) for n in range(10)]
            results = await asyncio.gather(*first, store.insert(pledge("poison")), *swaps, return_exceptions=True)
            assert results[:10] == [None] * 10
            refusal = results[10]
            assert isinstance(refusal, Refused)
            assert not refusal.retriable
            assert [getattr(result, "revision", result) for result in results[11:]] == [2] * 10
            assert len((await store.find(Filter())).pledges) == 20

    run(main())


def test_a_store_that_cannot_reach_its_server_reports_it_and_changes_nothing(served_place: Place) -> None:
    server = served_place.server
    assert server is not None

    async def main() -> None:
        server.kill()
        try:
            store = store_of(served_place.url)
            with pytest.raises(Offline) as failure:
                await store.start()
            assert failure.value.retriable
            with pytest.raises(Offline):
                await store.load("a")
            await store.close()
        finally:
            server.start()
        async with served_place.opened() as again:
            assert await again.load("a") is None

    run(main())


def test_a_server_restart_between_two_operations_goes_unnoticed(served_place: Place) -> None:
    """A dead connection is found before anything is sent on it, so nothing is in doubt."""
    server = served_place.server
    assert server is not None

    async def main() -> None:
        async with served_place.opened() as store:
            before = pledge("a")
            await store.insert(before)
            server.kill()
            server.start()
            after = await store.swap(before, progress(text="one"))
            assert after is not None
            assert await store.load("a") == after

    run(main())


def test_operations_fail_at_once_while_the_server_is_down_and_succeed_afterwards(served_place: Place) -> None:
    server = served_place.server
    assert server is not None

    async def main() -> None:
        async with served_place.opened() as store:
            before = pledge("a")
            await store.insert(before)
            server.kill()
            try:
                for call in (
                    store.swap(before, progress()),
                    store.load("a"),
                    store.claim(owner="me", now_ms=NOW_MS, lease_ms=LEASE_MS, limit=5),
                    store.next_due_ms(),
                    store.find(Filter()),
                    store.list_topics(),
                ):
                    with pytest.raises(Offline):
                        await call
            finally:
                server.start()
            assert await store.load("a") == before
            assert await store.swap(before, progress()) is not None
            assert store.statistics()["failures"] == 2

    run(main())


def test_a_write_to_a_silent_server_is_unknown_and_a_read_is_offline(
    served_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_ANSWER_TIMEOUT_S", 0.5)
    server = served_place.server
    assert server is not None

    async def main() -> None:
        async with served_place.opened() as store:
            await store.insert(pledge("a"))
            server.pause()
            try:
                results = await asyncio.gather(store.insert(pledge("b")), store.load("a"), return_exceptions=True)
            finally:
                server.go_on()
            assert isinstance(results[0], Unknown | Offline)  # MariaDB did not get as far as COMMIT
            assert isinstance(results[1], Offline)
            known = await store.insert(pledge("b"))
            assert known in (None, pledge("b"))
            assert known is None or isinstance(results[0], Unknown)
            assert await store.load("b") == pledge("b")

    run(main())


def test_closing_performs_earlier_operations_and_refuses_later_ones(real_place: Place) -> None:
    async def main() -> None:
        store = real_place.open()
        await store.start()
        asked = [asyncio.create_task(store.insert(pledge(f"p{n}"))) for n in range(50)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*asked) == [None] * 50
        with pytest.raises(Offline):
            await store.insert(pledge("late"))
        await store.close()
        async with real_place.opened() as again:
            assert len((await again.find(Filter(), limit=60)).pledges) == 50

    run(main())


# ------------------------------------------------------------------ tables


def test_stores_that_start_together_create_their_tables_once(real_place: Place) -> None:
    async def main() -> None:
        stores = [real_place.open() for _ in range(8)]
        await asyncio.gather(*(store.start() for store in stores))
        results = await asyncio.gather(*(store.insert(pledge(f"p{n}")) for n, store in enumerate(stores)))
        assert results == [None] * 8
        assert len((await stores[0].find(Filter())).pledges) == 8
        for store in stores:
            await store.close()

    run(main())


def test_tables_of_a_newer_layout_are_left_alone(real_place: Place) -> None:
    async def main() -> None:
        async with real_place.opened():
            pass
        if real_place.url.startswith("redis:"):
            with _redis(real_place) as client:
                client.hset(f"{{{real_place.url.partition('#')[2]}}}:meta", "version", 2)
        else:
            _execute(real_place, "UPDATE avow_meta SET value = 2")
        store = real_place.open()
        with pytest.raises(Refused, match="layout 2"):
            await store.start()
        await store.close()

    run(main())


def test_existing_tables_are_used_without_the_right_to_create_tables(postgres_server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        with PLACES["postgres"].make(postgres_server, tmp_path) as place:
            async with place.opened():
                pass
            schema = place.url.rpartition("%3D")[2]
            _execute(
                place,
                f"CREATE ROLE {schema}_worker LOGIN",
                f"GRANT USAGE ON SCHEMA {schema} TO {schema}_worker",
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}_worker",
            )
            store = store_of(place.url.replace("postgres@", f"{schema}_worker@"))
            await store.start()
            assert await store.insert(pledge("a")) is None
            await store.close()

    run(main())


# ------------------------------------------------------------------ what a server promises


def test_statistics_show_whether_the_server_syncs_and_how_operations_were_grouped(real_place: Place) -> None:
    async def main() -> None:
        async with real_place.opened() as store:
            await asyncio.gather(*(store.insert(pledge(f"p{n}")) for n in range(200)))
            seen = store.statistics()
            assert seen["server_syncs"] == 1
            assert seen["operations"] == 200
            assert seen["groups"] < 50
            assert seen["largest_group"] > 50
            assert (seen["failures"], seen["waiting"]) == (0, 0)

    run(main())


def test_redis_that_does_not_sync_every_command_is_recognized() -> None:
    async def main() -> None:
        with RedisServer(appendfsync="everysec") as server:
            store = RedisStore(server.dsn)
            await store.start()
            assert store.statistics()["server_syncs"] == 0
            await store.close()

    run(main())


def test_a_write_that_waits_for_redis_replicas_is_not_done_without_them() -> None:
    async def main() -> None:
        with RedisServer() as primary, RedisServer(replica_of=primary) as replica:
            store = RedisStore(f"{primary.dsn}?wait_replicas=1")
            await store.start()
            assert await store.insert(pledge("a")) is None
            copy = RedisStore(replica.dsn)
            with pytest.raises(Offline):  # a replica takes no writes, and says so
                await copy.start()
            replica.kill()
            with pytest.raises(Unknown):
                await store.insert(pledge("b"))
            await store.close()

    run(main())


@pytest.mark.parametrize("query", ["prefix={x}", "prefix=", "wait_replicas=all", "wait_replicas=-1"])
def test_settings_in_a_url_of_redis_are_checked(query: str) -> None:
    with pytest.raises(InvalidRequest):
        RedisStore(f"redis://127.0.0.1:1/0?{query}")


@pytest.mark.parametrize("url", ["mysql://root@127.0.0.1:1", "http://127.0.0.1:1/db", "mysql://127.0.0.1:1/db?tls=yes"])
def test_a_url_of_mysql_is_checked(url: str) -> None:
    with pytest.raises(InvalidRequest):
        MySQLStore(url)


def test_scripts_that_redis_lost_are_loaded_again(redis_server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        with PLACES["redis"].make(redis_server, tmp_path) as place:
            async with place.opened() as store:
                await store.insert(pledge("a"))
                with _redis(place) as client:
                    client.script_flush()
                results = await asyncio.gather(*(store.insert(pledge(name)) for name in ("a", "b", "c")))
                assert results == [pledge("a"), None, None]
                with _redis(place) as client:
                    client.script_flush()
                assert len((await store.find(Filter())).pledges) == 3

    run(main())


def test_redis_without_memory_refuses_writes_and_still_reads() -> None:
    async def main() -> None:
        with RedisServer() as server:
            store = RedisStore(server.dsn)
            await store.start()
            before = pledge("a")
            await store.insert(before)
            with contextlib.closing(redis_client.Redis.from_url(server.dsn)) as client:
                client.config_set("maxmemory", "1")
                results = await asyncio.gather(
                    *(store.insert(pledge(name)) for name in ("b", "c", "d")),
                    store.swap(before, progress(text="one")),
                    return_exceptions=True,
                )
                assert all(isinstance(result, DiskFull) for result in results)
                assert await store.load("a") == before
                client.config_set("maxmemory", "0")
            assert await store.insert(pledge("b")) is None
            await store.close()

    run(main())


def test_stores_with_different_prefixes_are_separate(redis_server: Server) -> None:
    async def main() -> None:
        one, two = RedisStore(redis_server.dsn, prefix="one"), RedisStore(f"{redis_server.dsn}?prefix=two")
        await one.start()
        await two.start()
        assert await one.insert(pledge("a")) is None
        assert await two.load("a") is None
        assert await two.insert(pledge("a")) is None
        await one.close()
        await two.close()

    run(main())


def test_only_the_pledge_that_exceeds_the_servers_packet_is_refused() -> None:
    async def main() -> None:
        with MariaDBServer("--max-allowed-packet=1M") as server:
            store = store_of(server.dsn)
            await store.start()
            results = await asyncio.gather(
                store.insert(pledge("a")),
                store.insert(pledge("large", payload=b"'" * 600_000)),
                store.insert(pledge("b", payload=b"x" * 900_000)),
                store.insert(pledge("c", payload=b"x" * 900_000)),
                return_exceptions=True,
            )
            assert [results[n] for n in (0, 2, 3)] == [None] * 3
            assert isinstance(results[1], AvowError)
            assert results[1].definite
            await store.close()

    run(main())


@pytest.mark.parametrize("version", ["5.7.44-log", "10.5.23-MariaDB", "5.5.5-10.4.1-MariaDB-log"])
def test_a_server_that_cannot_skip_locked_rows_is_refused(version: str) -> None:
    with pytest.raises(Refused):
        check_server(version)


@pytest.mark.parametrize(
    "version", ["8.0.36", "9.1.0", "10.11.6-MariaDB-0+deb12u1", "5.5.5-10.6.1-MariaDB", "11.4.2-MariaDB"]
)
def test_servers_that_can_skip_locked_rows_are_accepted(version: str) -> None:
    check_server(version)
