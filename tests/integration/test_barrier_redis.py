"""The barrier in Redis: the scripts on a real server, blocking and asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio
from tests.integration.barrier_databases import new_gid
from tests.services import Server

from avow.barrier.key import HORIZON_MIN_S, START_S, Question, Verdict, now_ms
from avow.barrier.redis import AsyncBarrier, Barrier, check_back, check_back_async, checkback
from avow.barrier.redis_scripts import Adjusted
from avow.errors import AlreadyDecided, InvalidRequest, Malformed, Trimmed

DAY_S = 24 * 3600


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(request: pytest.FixtureRequest, redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.dsn, decode_responses=request.param) as made:
        yield made


def stock_of(client: redis.Redis, key: str) -> int:
    return int(client.get(key) or -1)  # type: ignore[arg-type]


def test_point_10_a_retry_after_the_last_unit_was_taken_is_done_and_not_short(
    client: redis.Redis,
) -> None:
    """Where dtm's flash sale loses the last unit: it looks at the stock before the duplicate key."""
    stock, gid, other = new_gid("stock"), new_gid(), new_gid()
    client.set(stock, 1)
    assert Barrier(gid).check_adjust(client, stock, -1) is Adjusted.DONE
    assert Barrier(gid).check_adjust(client, stock, -1) is Adjusted.DUPLICATE
    assert Barrier(other).check_adjust(client, stock, -1) is Adjusted.SHORT
    assert stock_of(client, stock) == 0
    assert check_back(client, gid) is Verdict.SUCCESS
    assert check_back(client, other) is Verdict.FAILURE


def test_after_a_checkback_an_adjustment_that_had_not_started_is_refused(client: redis.Redis) -> None:
    stock, gid = new_gid("stock"), new_gid()
    client.set(stock, 5)
    assert check_back(client, gid) is Verdict.FAILURE
    with pytest.raises(AlreadyDecided):
        Barrier(gid).check_adjust(client, stock, -1)
    with pytest.raises(AlreadyDecided):
        Barrier(gid).insert(client, ("DECR", stock))
    assert stock_of(client, stock) == 5
    assert check_back(client, gid) is Verdict.FAILURE


@pytest.mark.parametrize("value", [None, "0", "2"])
def test_a_stock_that_is_missing_or_too_small_is_short_and_unchanged(client: redis.Redis, value: str | None) -> None:
    stock, gid = new_gid("stock"), new_gid()
    if value is not None:
        client.set(stock, value)
    assert Barrier(gid).check_adjust(client, stock, -3) is Adjusted.SHORT
    assert stock_of(client, stock) == int(value or -1)
    assert client.exists(f"{gid}-00-msg-01") == 0


@pytest.mark.parametrize("value", ["three", "3.5"])
def test_a_stock_that_is_not_an_integer_is_an_error_and_nothing_is_marked_as_done(
    client: redis.Redis, value: str
) -> None:
    stock, gid = new_gid("stock"), new_gid()
    client.set(stock, value)
    with pytest.raises(redis.ResponseError):
        Barrier(gid).check_adjust(client, stock, -1)
    client.set(stock, 3)
    assert Barrier(gid).check_adjust(client, stock, -1) is Adjusted.DONE


def test_keys_are_those_of_dtm(client: redis.Redis) -> None:
    stock, gid = new_gid("stock"), new_gid()
    client.set(stock, 5)
    Barrier(gid).check_adjust(client, stock, -1)
    Barrier(gid, "01", "action").check_adjust(client, stock, -1)
    assert client.exists(f"{gid}-00-msg-01", f"{gid}-01-action-01") == 2
    dtms = new_gid()
    client.set(f"{dtms}-00-msg-01", "op")
    assert check_back(client, dtms) is Verdict.SUCCESS
    assert Barrier(dtms).check_adjust(client, stock, -1) is Adjusted.DUPLICATE
    client.set(f"{dtms}-00-msg-01", "rollback")
    assert check_back(client, dtms) is Verdict.FAILURE


def test_commands_of_a_branch_take_effect_once(client: redis.Redis) -> None:
    counter, members, gid = new_gid("counter"), new_gid("members"), new_gid()
    query = {"gid": gid, "branch_id": "01", "op": "action"}
    for delivery in range(3):
        barrier = Barrier.from_query(query)
        assert barrier.once(client, ("INCRBY", counter, 7), ("SADD", members, "a", b"b\0c")) is (delivery == 0)
        assert barrier.once(client, ("INCRBY", counter, 100)) is (delivery == 0)
    assert stock_of(client, counter) == 107
    assert client.scard(members) == 2


def test_commands_of_a_pledge_take_effect_once_and_are_its_proof(client: redis.Redis) -> None:
    counter, gid = new_gid("counter"), new_gid()
    assert Barrier(gid).insert(client, ("INCR", counter))
    assert not Barrier(gid).insert(client, ("INCR", counter))
    assert stock_of(client, counter) == 1
    assert check_back(client, gid) is Verdict.SUCCESS


def test_a_first_command_that_fails_leaves_nothing_and_can_be_repeated(client: redis.Redis) -> None:
    gid, key, counter = new_gid(), new_gid("text"), new_gid("counter")
    client.set(key, "text")
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="not an integer"):
            Barrier(gid, "01", "action").once(client, ("INCR", key), ("INCR", counter))
    client.set(key, 1)
    assert Barrier(gid, "01", "action").once(client, ("INCR", key), ("INCR", counter))


def test_a_later_command_that_fails_is_an_error_each_time_and_nothing_is_done_twice(client: redis.Redis) -> None:
    gid, key, counter = new_gid(), new_gid("text"), new_gid("counter")
    client.set(key, "text")
    for _ in range(3):
        with pytest.raises(Malformed, match="broken:2"):
            Barrier(gid, "01", "action").once(client, ("INCR", counter), ("INCR", key))
    assert stock_of(client, counter) == 1


def test_two_deliveries_with_colliding_keys_are_kept_apart(client: redis.Redis) -> None:
    gid, counter = new_gid(), new_gid("counter")
    assert Barrier(gid, "01-01", "action").once(client, ("INCR", counter))
    with pytest.raises(Malformed, match="another gid"):
        Barrier(f"{gid}-01", "01", "action").once(client, ("INCR", counter))
    assert stock_of(client, counter) == 1


def test_point_12_expiry_never_turns_committed_into_rolled_back(client: redis.Redis) -> None:
    stock, gid, kept = new_gid("stock"), new_gid(), new_gid()
    client.set(stock, 5)
    assert Barrier(kept).check_adjust(client, stock, -1) is Adjusted.DONE
    assert client.ttl(f"{kept}-00-msg-01") == -1  # no expiry by default
    assert Barrier(gid, expire_s=HORIZON_MIN_S).check_adjust(client, stock, -1) is Adjusted.DONE
    assert HORIZON_MIN_S - 60 < int(client.ttl(f"{gid}-00-msg-01")) <= HORIZON_MIN_S  # type: ignore[arg-type]
    client.delete(f"{gid}-00-msg-01")  # what the time does
    for prepared_ms in (None, now_ms() - HORIZON_MIN_S * 1000, now_ms() - 6 * DAY_S * 1000):
        for _ in range(2):
            with pytest.raises(Trimmed):
                check_back(client, gid, prepared_ms=prepared_ms, expire_s=HORIZON_MIN_S)
    young = new_gid()
    assert check_back(client, young, prepared_ms=now_ms(), expire_s=HORIZON_MIN_S) is Verdict.FAILURE
    assert int(client.ttl(f"{young}-00-msg-01")) > HORIZON_MIN_S - 60  # type: ignore[arg-type]


def test_an_expiry_shorter_than_the_least_is_refused(client: redis.Redis) -> None:
    stock, gid = new_gid("stock"), new_gid()
    client.set(stock, 5)
    for expire_s in (0, 86400, HORIZON_MIN_S - 1):
        with pytest.raises(InvalidRequest, match="must be kept"):
            Barrier(gid, expire_s=expire_s).check_adjust(client, stock, -1)
        with pytest.raises(InvalidRequest, match="must be kept"):
            check_back(client, gid, prepared_ms=now_ms(), expire_s=expire_s)
    assert stock_of(client, stock) == 5


def test_work_that_begins_long_after_prepare_is_refused(client: redis.Redis) -> None:
    stock, gid = new_gid("stock"), new_gid()
    client.set(stock, 5)
    with pytest.raises(Trimmed, match="hours ago"):
        Barrier(gid, prepared_ms=now_ms() - START_S * 1000 - 1000).check_adjust(client, stock, -1)
    assert stock_of(client, stock) == 5


def test_concurrent_buyers_and_checkbacks_leave_a_stock_that_matches_the_verdicts(redis_server: Server) -> None:
    stock, gids = new_gid("stock"), [new_gid() for _ in range(200)]
    found: dict[str, list[object]] = {gid: [] for gid in gids}
    with redis.Redis.from_url(redis_server.dsn) as client:
        client.set(stock, 50)

        def buy() -> None:
            for gid in gids:
                try:
                    found[gid].append(Barrier(gid).check_adjust(client, stock, -1))
                except AlreadyDecided as error:
                    found[gid].append(error)

        def ask() -> None:
            for gid in reversed(gids):
                found[gid].append(check_back(client, gid))

        threads = [threading.Thread(target=work) for work in (buy, buy, ask)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        final = {gid: check_back(client, gid) for gid in gids}
        taken = 50 - int(client.get(stock))  # type: ignore[arg-type]
    assert taken == sum(verdict is Verdict.SUCCESS for verdict in final.values()) <= 50
    for gid in gids:
        assert found[gid].count(Adjusted.DONE) == (final[gid] is Verdict.SUCCESS)
        assert {seen for seen in found[gid] if isinstance(seen, Verdict)} == {final[gid]}


def test_scripts_that_a_server_lost_are_loaded_again(client: redis.Redis) -> None:
    gid = new_gid()
    assert check_back(client, gid) is Verdict.FAILURE
    client.script_flush()
    assert check_back(client, gid) is Verdict.FAILURE


def test_asyncio_has_the_same_calls(redis_server: Server) -> None:
    stock, gid, late = new_gid("stock"), new_gid(), new_gid()

    async def go() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.dsn) as client:
            await client.set(stock, 1)
            assert await AsyncBarrier(gid).check_adjust(client, stock, -1) is Adjusted.DONE
            assert await AsyncBarrier(gid).check_adjust(client, stock, -1) is Adjusted.DUPLICATE
            assert await check_back_async(client, gid) is Verdict.SUCCESS
            assert await checkback(client)(Question(late)) is Verdict.FAILURE
            with pytest.raises(AlreadyDecided):
                await AsyncBarrier(late).insert(client, ("INCR", stock))
            branch = {"gid": gid, "branch_id": "01", "op": "action"}
            assert await AsyncBarrier.from_query(branch).once(client, ("INCR", stock))
            assert not await AsyncBarrier.from_query(branch).once(client, ("INCR", stock))
            assert await AsyncBarrier(new_gid()).insert(client, ("INCR", stock))
            assert int(await client.get(stock) or 0) == 2

    asyncio.run(go())
