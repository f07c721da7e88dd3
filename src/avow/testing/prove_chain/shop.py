"""The shop of the campaign: an order is a row of its database and a message of the queue, or neither.

    POST /orders       an Order as JSON; {"committed": true | false | null}; without an answer, or with null: ask again
    GET  /checkback

It is a process of its own: `python -m avow.testing.prove_chain.shop --database .. --peers ..`. The order's id is the
pledge's gid, the message's key, and stands in its value. examples/shop is the same with a web framework.
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
from avow.testing.prove_pledges.places import SqlPlace, place_of
from avow.testing.responding import serve

QUEUE: Final = "orders"
PATIENCE_S: Final = 5.0
PLEDGED: Final = {"timeout_to_fail_s": 0.5, "retry_interval_s": 0.3, "request_timeout_s": 2.0}


class Order(Struct, frozen=True):
    """`paid` false: the transaction is rolled back after its work."""

    id: str
    amount: int
    paid: bool = True


class NotPaid(Exception):
    """What rolls an order back."""


_ORDER: Final = msgspec.json.Decoder(Order)  # made by one thread: two that meet a type for the first time can crash


class Shop:
    def __init__(self, database: str, client: BlockingClient) -> None:
        self._place, self._client = cast(SqlPlace, place_of(database)), client
        mark = "?" if database.startswith("sqlite") else "%s"
        self._insert = f"insert into orders (id, amount) values ({mark}, {mark})"
        self.url = ""

    def prepare(self) -> None:
        with closing(self._place.connect()) as connection:
            sql.create_table(connection)
            connection.cursor().execute("create table if not exists orders (id varchar(80), amount integer)")
            connection.commit()

    def respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(target)
        if parts.path == "/orders" and method == "POST":
            return 200, msgspec.json.encode({"committed": self.order(_ORDER.decode(body))})
        if parts.path == "/checkback" and method == "GET":
            said = answer(dict(parse_qsl(parts.query)), self._place.check_back)
            return said.status, said.body
        return 404, b""

    def order(self, order: Order) -> bool | None:
        """Whether it is committed; None: not known yet."""
        pledge = self._client.pledge(order.id, **cast(Any, PLEDGED))
        pledge.publish(QUEUE, {"order_id": order.id, "amount": order.amount}, key=order.id)
        try:
            with (
                closing(self._place.connect()) as connection,
                pledge.transaction(connection, checkback=f"{self.url}/checkback", ask=self._place.check_back) as cursor,
            ):
                cursor.execute(self._insert, (order.id, order.amount))
                if not order.paid:
                    raise NotPaid
        except NotPaid:
            return False
        except (AlreadyDecided, AlreadyExists):  # a customer who asks again
            return pledge.current().committed
        assert pledge.outcome is not None
        return pledge.outcome.committed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    with connect_blocking(given.peers, timeout_s=PATIENCE_S) as client:
        shop = Shop(given.database, client)
        shop.prepare()
        serve(shop, port=given.port)


if __name__ == "__main__":
    main()
