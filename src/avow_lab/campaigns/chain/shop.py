"""The shop under test: an order is a row of its database and a message of the queue, or neither.

    POST /orders       an Order as JSON; {"committed": true | false | null}; without an answer, or with null: ask again
    GET  /checkback

It is a separate process: `python -m avow_lab.campaigns.chain.shop --database .. --peers ..`. The order's id is the
pledge's gid and the message's key, and is part of its value. examples/shop is the same with a web framework.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Struct

from avow.barrier import sql
from avow.barrier.web import answer
from avow.client.blocking import BlockingClient, connect_blocking
from avow.errors import AlreadyDecided, AlreadyExists
from avow_lab.campaigns.harness.http_responder import serve
from avow_lab.campaigns.pledges.databases import SqlDatabase, open_database

QUEUE: Final = "orders"
CLIENT_TIMEOUT_S: Final = 5.0
PLEDGED: Final = {"timeout_to_fail_s": 0.5, "retry_interval_s": 0.3, "request_timeout_s": 2.0}


class Order(Struct, frozen=True):
    """`paid` false: the transaction is rolled back after its work."""

    id: str
    amount: int
    paid: bool = True


class NotPaid(Exception):
    """Raised in the transaction to roll an order back."""


_ORDER: Final = msgspec.json.Decoder(Order)  # made once: threads that build it at the same time can crash


class Shop:
    def __init__(self, database: str, client: BlockingClient) -> None:
        self._database, self._client = cast(SqlDatabase, open_database(database)), client
        mark = "?" if database.startswith("sqlite") else "%s"
        self._insert = f"insert into orders (id, amount) values ({mark}, {mark})"
        self.url = ""

    def prepare(self) -> None:
        with closing(self._database.connect()) as connection:
            sql.create_table(connection)
            connection.cursor().execute("create table if not exists orders (id varchar(80), amount integer)")
            connection.commit()

    def respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(target)
        if parts.path == "/orders" and method == "POST":
            return 200, msgspec.json.encode({"committed": self.order(_ORDER.decode(body))})
        if parts.path == "/checkback" and method == "GET":
            result = answer(dict(parse_qsl(parts.query)), self._database.check_back)
            return result.status, result.body
        return 404, b""

    def order(self, order: Order) -> bool | None:
        """Whether it is committed; None: unknown as yet."""
        pledge = self._client.pledge(order.id, **cast(Any, PLEDGED))
        pledge.publish(QUEUE, {"order_id": order.id, "amount": order.amount}, key=order.id)
        try:
            with (
                closing(self._database.connect()) as connection,
                pledge.transaction(
                    connection, checkback=f"{self.url}/checkback", ask=self._database.check_back
                ) as cursor,
            ):
                cursor.execute(self._insert, (order.id, order.amount))
                if not order.paid:
                    raise NotPaid
        except NotPaid:
            return False
        except (AlreadyDecided, AlreadyExists):  # a repeated request
            return pledge.current().committed
        assert pledge.outcome is not None
        return pledge.outcome.committed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    with connect_blocking(given.peers, timeout_s=CLIENT_TIMEOUT_S) as client:
        shop = Shop(given.database, client)
        shop.prepare()
        serve(shop, port=given.port)


if __name__ == "__main__":
    main()
