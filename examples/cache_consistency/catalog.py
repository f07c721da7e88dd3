"""A catalog: prices in a database, a cache in front of it.

    GET  /price?item=shoes                         from the cache
    POST /price?item=shoes&price=30                changes the database, and pledges to update the cache
    POST /price?item=shoes&price=30&how=plain      the same without a pledge: first the database, then the cache
    POST /delete-cache                             the branch
    GET  /avow/checkback

A reader with `slow_s` takes that long between the database and the cache. `--die-at committed` ends the process as by
kill -9 when a price is committed, and the pledge is not submitted yet.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import time

import redis
from cache import Cache
from flask import Flask, request
from flask.typing import ResponseReturnValue
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from werkzeug.serving import make_server

from avow import BlockingClient, connect_blocking
from avow.barrier.sqlalchemy import checkback, create_table
from avow.barrier.web import flask_blueprint

CHANGE = text("update prices set price = :price where item = :item")
READ = text("select price from prices where item = :item")


class Catalog:
    def __init__(self, engine: Engine, client: BlockingClient, cache: Cache, *, die_at: str) -> None:
        self.engine, self.client, self.cache, self.die_at = engine, client, cache, die_at

    def change(self, item: str, price: int, *, checkback: str, delete: str) -> None:
        pledge = self.client.pledge(timeout_to_fail_s=0.5, retry_interval_s=0.3).call(delete, {"key": item})
        with Session(self.engine) as session:
            pledge.join(session, checkback=checkback)
            session.execute(CHANGE, {"item": item, "price": price})
            session.commit()
            self.passing("committed")
            pledge.submit()

    def change_plainly(self, item: str, price: int) -> None:
        with self.engine.begin() as connection:
            connection.execute(CHANGE, {"item": item, "price": price})
        self.passing("committed")
        self.cache.tag(item)

    def read(self, item: str, *, slow_s: float) -> str:
        def load() -> str:
            with self.engine.connect() as connection:
                price = connection.execute(READ, {"item": item}).scalar_one()
            time.sleep(slow_s)
            return str(price)

        return self.cache.fetch(item, load)

    def passing(self, step: str) -> None:
        if step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def app_of(catalog: Catalog) -> Flask:
    app = Flask(__name__)
    app.register_blueprint(flask_blueprint("/avow/checkback", checkback(catalog.engine)))

    @app.get("/price")
    def read() -> ResponseReturnValue:
        return {"price": int(catalog.read(request.args["item"], slow_s=float(request.args.get("slow_s", 0))))}

    @app.post("/price")
    def change() -> ResponseReturnValue:
        item, price, url = request.args["item"], int(request.args["price"]), request.host_url
        if request.args.get("how") == "plain":
            catalog.change_plainly(item, price)
        else:
            catalog.change(item, price, checkback=url + "avow/checkback", delete=url + "delete-cache")
        return {"price": price}

    @app.post("/delete-cache")
    def delete_cache() -> ResponseReturnValue:
        catalog.cache.tag(request.get_json()["key"])  # done twice is done once: no barrier needed
        return {"dtm_result": "SUCCESS"}

    return app


def open_catalog(engine: Engine, items: list[str]) -> None:
    create_table(engine)  # the barrier's
    with engine.begin() as connection:
        connection.execute(text("create table if not exists prices (item varchar(80) primary key, price integer)"))
        if connection.execute(text("select count(*) from prices")).scalar_one() == 0:
            connection.execute(text("insert into prices values (:item, 1)"), [{"item": item} for item in items])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True, help="as SQLAlchemy takes it")
    parser.add_argument("--redis", required=True)
    parser.add_argument("--peers", required=True, help="addresses of an Avow cluster")
    parser.add_argument("--items", default="shoes", help="names, with commas between")
    parser.add_argument("--die-at", default="", help="committed")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    engine = create_engine(given.database)
    open_catalog(engine, given.items.split(","))
    with connect_blocking(given.peers) as client, redis.Redis.from_url(given.redis) as store:
        catalog = Catalog(engine, client, Cache(store), die_at=given.die_at)
        server = make_server("127.0.0.1", given.port, app_of(catalog), threaded=True)
        print(json.dumps({"url": f"http://127.0.0.1:{server.port}"}), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
