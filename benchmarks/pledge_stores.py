"""What group commit is worth in each pledge store: the same 64 tasks, with groups and without.

Each task works on pledges one after the other: insert, claim, swap, swap with release. That is four operations, each of
which must be on the disk before the next is asked for. Rounds are taken in turn, so that a disk with moods is the same
for all; the claim is their ratio.

    grouped       as the store is
    one by one    the same store, one operation in a transaction
    64 links      PostgreSQL only: a connection for each task, one statement at a time, as it is usually written

`python -m benchmarks.pledge_stores [--rounds 3] [--seconds 2] [sqlite postgres mariadb redis]`. Servers are started for
it (make services). Exit code 1 when grouping gains less than it should.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

import psycopg
import uvloop
from msgspec.structs import replace
from tests.services import MariaDBServer, PostgresServer, RedisServer

from avow import limits
from avow.pledge.record import NEVER_MS, Attempt, Branch, BranchProgress, Content, Pledge, Progress
from avow.pledge.store import PledgeStore
from avow.pledge.stores import operations as ops
from avow.pledge.stores import postgres_statements as sql
from avow.pledge.stores.mysql import MySQLStore
from avow.pledge.stores.postgres import PostgresStore
from avow.pledge.stores.postgres_connection import packed, register
from avow.pledge.stores.redis import RedisStore
from avow.pledge.stores.sqlite import SQLiteStore

TASKS: Final = 64
STEPS: Final = 4
GAIN_MIN: Final = {"sqlite": 5.0, "postgres": 5.0, "mariadb": 5.0, "redis": 2.0}
_PAYLOAD: Final = b'{"amount":30,"transInResult":"","transOutResult":""}'

Turn = Callable[[str, int], Awaitable[None]]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _prepared(gid: str) -> Pledge:
    step = ("http://bank-b.example/trans-in", _PAYLOAD)
    content = Content(gid, (Branch("01", *step),), checkback="http://bank-a.example/checkback", steps=(step,))
    now_ms = _now_ms()
    return Pledge(content, Progress("prepared", now_ms, now_ms, now_ms + 35_000, (BranchProgress(),)))


def _succeeded(progress: Progress) -> Progress:
    now_ms = _now_ms()
    return replace(
        progress,
        status="succeeded",
        next_at_ms=NEVER_MS,
        finished_ms=now_ms,
        branches=(BranchProgress("succeeded", 1, "", now_ms),),
        attempts=(Attempt(now_ms, "01", "succeeded", 3),),
    )


def by_store(store: PledgeStore) -> Turn:
    async def turn(gid: str, _: int) -> None:
        assert await store.insert(_prepared(gid)) is None
        claimed = await store.claim_one(gid, owner="me", now_ms=_now_ms(), lease_ms=30_000)
        assert claimed is not None
        submitted = await store.swap(claimed, replace(claimed.progress, status="submitted", next_at_ms=_now_ms()))
        assert submitted is not None
        assert await store.swap(submitted, _succeeded(submitted.progress), release=True) is not None

    return turn


def by_links(links: list[psycopg.AsyncConnection[Any]]) -> Turn:
    """The same statements, with arrays of one."""

    async def turn(gid: str, number: int) -> None:
        link = links[number]

        async def one(statement: bytes, row: tuple[Any, ...]) -> tuple[Any, ...]:
            found = await (await link.execute(statement, [packed([value]) for value in row])).fetchall()
            return tuple(found[0])

        inserted = ops.inserting(_prepared(gid)).row
        await one(sql.INSERT, inserted)
        _, *stored = await one(sql.CLAIM_ONE, (inserted.gid, b"me", _now_ms(), _now_ms() + 30_000))
        claimed = ops.pledge_of(stored)
        first = ops.swapping(claimed, replace(claimed.progress, status="submitted"), release=False)
        await one(sql.SWAP, first.row[:1] + first.row[2:])
        last = ops.swapping(first.after, _succeeded(first.after.progress), release=True)
        await one(sql.SWAP, last.row[:1] + last.row[2:])

    return turn


async def operations_per_s(turn: Turn, seconds: float) -> float:
    done = 0
    began = time.perf_counter()

    async def task(number: int) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await turn(f"{number}-{os.urandom(8).hex()}", number)
            done += STEPS

    await asyncio.gather(*(task(number) for number in range(TASKS)))
    return done / (time.perf_counter() - began)


async def _grouped(make: Callable[[], PledgeStore], seconds: float, *, count: int) -> float:
    limits.PLEDGE_GROUP_COUNT = count  # type: ignore[misc]  # the only thing that differs
    store = make()
    await store.start()
    try:
        return await operations_per_s(by_store(store), seconds)
    finally:
        await store.close()


async def _by_links(dsn: str, seconds: float) -> float:
    links = [await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=1) for _ in range(TASKS)]
    for link in links:
        register(link)
        await link.execute("SET enable_seqscan = off")
    try:
        return await operations_per_s(by_links(links), seconds)
    finally:
        for link in links:
            await link.close()


@contextlib.contextmanager
def place(name: str) -> Iterator[tuple[Callable[[], PledgeStore], str]]:
    if name == "sqlite":
        with tempfile.TemporaryDirectory(prefix="avow-bench-") as folder:
            yield (lambda: SQLiteStore(f"{folder}/pledges.db")), ""
    elif name == "postgres":
        with PostgresServer() as postgres:
            yield (lambda: PostgresStore(postgres.dsn)), postgres.dsn
    elif name == "mariadb":
        with MariaDBServer() as mariadb:
            yield (lambda: MySQLStore(mariadb.dsn)), ""
    else:
        with RedisServer() as redis:
            yield (lambda: RedisStore(redis.dsn)), ""


def measure(name: str, *, rounds: int, seconds: float) -> bool:
    count = limits.PLEDGE_GROUP_COUNT
    with place(name) as (make, dsn):
        ways: dict[str, Callable[[], Coroutine[Any, Any, float]]] = {
            "grouped": lambda: _grouped(make, seconds, count=count),
            "one by one": lambda: _grouped(make, seconds, count=1),
        }
        if dsn:
            ways["64 links"] = lambda: _by_links(dsn, seconds)
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, run in ways.items():
                found[way].append(uvloop.run(run()))
    limits.PLEDGE_GROUP_COUNT = count  # type: ignore[misc]
    middle = {way: statistics.median(values) for way, values in found.items()}
    gain = statistics.median(a / b for a, b in zip(found["grouped"], found["one by one"], strict=True))
    print(f"{name:9}", "   ".join(f"{way} {value:8,.0f}/s" for way, value in middle.items()), f"  gain {gain:.1f}x")
    return gain >= GAIN_MIN[name]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.pledge_stores", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stores", nargs="*", default=list(GAIN_MIN))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args(arguments)
    held = [measure(name, rounds=asked.rounds, seconds=asked.seconds) for name in asked.stores]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
