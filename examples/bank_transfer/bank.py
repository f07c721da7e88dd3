"""A bank: accounts in a database of its own, and money that leaves it and arrives.

    POST /transfer?id=t-1&account=alice&amount=30&to=http://bank-b&payee=bob     out of here, into the other bank
    POST /trans-in?payee=bob                                                     a branch: money arrives
    GET  /avow/checkback                                                         what became of a transfer

What makes a transfer whole stands in `transfer`, in `trans_in`, and in one line for the checkback.
"""

from __future__ import annotations

import argparse
import json
import logging

from flask import Flask, request
from flask.typing import ResponseReturnValue
from sqlalchemy import Engine, create_engine, text
from werkzeug.serving import make_server

from avow import BlockingClient, connect_blocking
from avow.barrier.sqlalchemy import Barrier, checkback, create_table
from avow.barrier.web import flask_blueprint
from avow.errors import AlreadyDecided, AlreadyExists

TAKE = text("update accounts set amount = amount - :amount where name = :name and amount >= :amount")
GIVE = text("update accounts set amount = amount + :amount where name = :name")


class NotEnough(Exception):
    pass


def bank(engine: Engine, client: BlockingClient) -> Flask:
    app = Flask(__name__)
    app.register_blueprint(flask_blueprint("/avow/checkback", checkback(engine)))

    @app.post("/transfer")
    def transfer() -> ResponseReturnValue:
        order, amount = request.args, int(request.args["amount"])
        pledge = client.pledge(order["id"], timeout_to_fail_s=1.0, retry_interval_s=0.5)
        pledge.call(f"{order['to']}/trans-in?payee={order['payee']}", {"amount": amount})
        try:
            with pledge.transaction(engine, checkback=request.host_url + "avow/checkback") as tx:
                if tx.execute(TAKE, {"name": order["account"], "amount": amount}).rowcount != 1:
                    raise NotEnough
        except NotEnough:
            return {"committed": False, "why": "not enough money"}, 402
        except (AlreadyExists, AlreadyDecided):  # this id was seen before: a customer who asks again
            outcome = pledge.outcome or pledge.current()
            return {"committed": outcome.committed, "why": str(outcome)}
        return {"committed": True, "why": str(pledge.outcome)}

    @app.post("/trans-in")
    def trans_in() -> ResponseReturnValue:
        with engine.begin() as tx:
            if Barrier.from_query(request.args).once(tx):
                tx.execute(GIVE, {"name": request.args["payee"], "amount": request.get_json()["amount"]})
        return {"dtm_result": "SUCCESS"}

    @app.get("/accounts")
    def accounts() -> ResponseReturnValue:
        with engine.connect() as connection:
            return dict(connection.execute(text("select name, amount from accounts")).tuples().all())

    return app


def open_accounts(engine: Engine, names: list[str], amount: int) -> None:
    create_table(engine)  # the barrier's
    with engine.begin() as tx:
        tx.execute(text("create table if not exists accounts (name varchar(40) primary key, amount integer)"))
        if tx.execute(text("select count(*) from accounts")).scalar_one() == 0:
            tx.execute(
                text("insert into accounts values (:name, :amount)"), [{"name": n, "amount": amount} for n in names]
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True, help="as SQLAlchemy takes it")
    parser.add_argument("--peers", required=True, help="addresses of an Avow cluster")
    parser.add_argument("--accounts", default="alice", help="names, with commas between")
    parser.add_argument(
        "--amount", type=int, default=100, help="in each account, when the bank opens for the first time"
    )
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    engine = create_engine(given.database)
    open_accounts(engine, given.accounts.split(","), given.amount)
    with connect_blocking(given.peers) as client:
        server = make_server("127.0.0.1", given.port, bank(engine, client), threaded=True)
        print(json.dumps({"url": f"http://127.0.0.1:{server.port}"}), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
