"""A shop: an order is a row of its database and a message of the queue `orders`, or neither.

    POST /orders           {"order_id": "o-1", "item": "book", "pieces": 2}
                           201 ordered (also when asked again), 409 no such item or not enough of it, 503 ask again
    GET  /avow/checkback   what became of an order's transaction

The order's id is the pledge's gid, the message's key, and stands in the message's JSON: by it the audit joins the
database, the queue and the table that a pipeline fills from it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from avow import AvowError, Client, connect
from avow.barrier.sqlalchemy import checkback, create_table_async
from avow.barrier.web import starlette_route
from avow.errors import AlreadyDecided, AlreadyExists

QUEUE = "orders"
STOCK = {"book": 1_000_000, "lamp": 40}
TAKE = text("update stock set pieces = pieces - :pieces where item = :item and pieces >= :pieces")
ORDER = text("insert into orders (id, item, pieces) values (:order_id, :item, :pieces)")


class SoldOut(Exception):
    pass


@dataclass
class Shop:
    url: str
    engine: AsyncEngine
    client: Client

    async def order(self, request: Request) -> Response:
        order = await request.json()
        try:
            committed = await self.place(order)
        except AvowError as error:
            return JSONResponse({"why": str(error)}, 503)
        return JSONResponse({"committed": committed}, {True: 201, False: 409, None: 503}[committed])

    async def place(self, order: dict[str, Any]) -> bool | None:
        """Whether it is committed; None: not known yet."""
        pledge = self.client.pledge(order["order_id"], timeout_to_fail_s=1.0, retry_interval_s=0.5)
        pledge.publish(QUEUE, order, key=order["order_id"])
        try:
            async with pledge.transaction(self.engine, checkback=f"{self.url}/avow/checkback") as tx:
                if (await tx.execute(TAKE, order)).rowcount != 1:
                    raise SoldOut
                await tx.execute(ORDER, order)
        except SoldOut:
            return False
        except (AlreadyDecided, AlreadyExists):  # this id was seen before: a customer who asks again
            return (await pledge.current()).committed
        assert pledge.outcome is not None
        return pledge.outcome.committed


async def open_shop(engine: AsyncEngine) -> None:
    await create_table_async(engine)  # the barrier's
    async with engine.begin() as tx:
        await tx.execute(text("create table if not exists stock (item varchar(40) primary key, pieces integer)"))
        await tx.execute(
            text("create table if not exists orders (id varchar(80) primary key, item varchar(40), pieces integer)")
        )
        if (await tx.execute(text("select count(*) from stock"))).scalar_one() == 0:
            rows = [{"item": item, "pieces": pieces} for item, pieces in STOCK.items()]
            await tx.execute(text("insert into stock values (:item, :pieces)"), rows)


def app_of(given: argparse.Namespace, url: str) -> Starlette:
    engine = create_async_engine(given.database, connect_args={"timeout": 20} if "sqlite" in given.database else {})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await open_shop(engine)
        async with await connect(given.peers) as client:
            await client.create_queue(QUEUE, lanes=2)
            shop = Shop(url, engine, client)
            app.router.routes += [
                Route("/orders", shop.order, methods=["POST"]),
                starlette_route("/avow/checkback", checkback(engine)),
            ]
            print(json.dumps({"url": url}), flush=True)
            yield
        await engine.dispose()

    return Starlette(lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True, help="as SQLAlchemy's asyncio takes it")
    parser.add_argument("--peers", required=True, help="addresses of an Avow cluster")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    listening = socket.create_server(("127.0.0.1", given.port), backlog=1024)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(app_of(given, url), log_level="error", access_log=False)
    asyncio.run(uvicorn.Server(config).serve([listening]))


if __name__ == "__main__":
    main()
