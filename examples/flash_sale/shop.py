"""A shop that sells a few pieces to many people: stock in Redis, orders in a SQL database, a pledge between the two.

    POST /buy?sale=shoes&user=7            201 bought (also when asked again), 410 sold out, 503 ask again
    POST /create-order?sale=shoes&user=7   a branch
    GET  /avow/checkback

The gid is made of the sale and the user: one pledge, so at most one order, for each, however often the button is
pressed. A shop that dies may leave it rolled back; that is for good, so the next attempt, with a gid of its own, cannot
make it two. A gid begins with the hash tag of the stock's key: both lie in one slot of a Redis cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import redis.asyncio
import uvicorn
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from avow import AvowError, Client, PledgeOutcome, RolledBack, connect
from avow.barrier.redis import Adjusted, AsyncBarrier, checkback
from avow.barrier.sqlalchemy import AsyncBarrier as SqlBarrier
from avow.barrier.sqlalchemy import create_table_async
from avow.barrier.web import starlette_route
from avow.errors import AlreadyDecided

ATTEMPTS = 5
ORDER = text("insert into orders (sale, buyer) values (:sale, :user)")


class SoldOut(Exception):
    pass


@dataclass
class Shop:
    url: str
    stock: redis.asyncio.Redis
    orders: AsyncEngine
    client: Client
    die_at: str = ""  # a step: there this process ends as by kill -9

    def passing(self, step: str) -> None:
        if step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def buy(self, request: Request) -> Response:
        sale, user = request.query_params["sale"], request.query_params["user"]
        try:
            committed = await self.sell(sale, user)
        except AvowError:
            return Response(status_code=503)
        return Response(status_code=503 if committed is None else 201 if committed else 410)

    async def sell(self, sale: str, user: str) -> bool | None:
        """Whether this user has a piece; None: not known yet."""
        if int(await self.stock.get(stock_of(sale)) or 0) <= 0:  # the many who come too late cost two questions
            return await self.has_bought(sale, user)
        for attempt in range(1, ATTEMPTS + 1):
            outcome = await self.try_to_sell(sale, user, attempt)
            self.passing("submitted")
            if not isinstance(outcome, RolledBack):
                return outcome.committed
            if isinstance(outcome.error, SoldOut):
                return False
        return False

    async def try_to_sell(self, sale: str, user: str, attempt: int) -> PledgeOutcome:
        async def take_one(barrier: AsyncBarrier) -> None:
            self.passing("prepared")
            if await barrier.check_adjust(self.stock, stock_of(sale), -1) is Adjusted.SHORT:
                raise SoldOut
            self.passing("deducted")

        pledge = self.client.pledge(gid_of(sale, user, attempt), timeout_to_fail_s=0.5, retry_interval_s=0.3)
        pledge.call(f"{self.url}/create-order", {"sale": sale, "user": user})
        try:
            return await pledge.do_and_submit(self.stock, take_one, checkback=f"{self.url}/avow/checkback")
        except AlreadyDecided:  # pressed twice
            return await pledge.current()

    async def has_bought(self, sale: str, user: str) -> bool:
        """A pledge of this user has committed: its order is there, or on its way."""
        keys = [f"{gid_of(sale, user, attempt)}-00-msg-01" for attempt in range(1, ATTEMPTS + 1)]
        return any(value not in (None, b"rollback") for value in await self.stock.mget(keys))

    async def create_order(self, request: Request) -> Response:
        async with self.orders.begin() as tx:
            if await SqlBarrier.from_query(request.query_params).once(tx):
                await tx.execute(ORDER, await request.json())
            self.passing("ordering")
        self.passing("ordered")
        return Response(status_code=200)


def stock_of(sale: str) -> str:
    return f"{{{sale}}}-stock"


def gid_of(sale: str, user: str, attempt: int) -> str:
    return f"{{{sale}}}-{user}-{attempt}"


def app_of(given: argparse.Namespace, url: str) -> Starlette:
    stock = redis.asyncio.from_url(given.redis)
    orders = create_async_engine(given.database, connect_args={"timeout": 20} if "sqlite" in given.database else {})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await create_table_async(orders)
        async with orders.begin() as tx:
            if "sqlite" in given.database:
                await tx.execute(text("pragma journal_mode = wal"))  # one sync for a commit
            await tx.execute(text("create table if not exists orders (sale varchar(80), buyer varchar(80))"))
        async with await connect(given.peers) as client:
            shop = Shop(url, stock, orders, client, given.die_at)
            app.router.routes += [
                Route("/buy", shop.buy, methods=["POST"]),
                Route("/create-order", shop.create_order, methods=["POST"]),
                starlette_route("/avow/checkback", checkback(stock)),
            ]
            print(json.dumps({"url": url}), flush=True)
            yield

    return Starlette(lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", required=True)
    parser.add_argument("--database", required=True, help="as SQLAlchemy's asyncio takes it")
    parser.add_argument("--peers", required=True, help="addresses of an Avow cluster")
    parser.add_argument("--die-at", default="", help="prepared, deducted, submitted, ordering or ordered")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    listening = socket.create_server(("127.0.0.1", given.port), backlog=1024)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(app_of(given, url), log_level="error", access_log=False)
    asyncio.run(uvicorn.Server(config).serve([listening]))


if __name__ == "__main__":
    main()
