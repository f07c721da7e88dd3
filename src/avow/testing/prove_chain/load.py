"""Customers: each places one order after the other, and asks again with the same id until it is told what became of it.

One order in eight is not paid, so its transaction is rolled back after its work: no message may come of it.
"""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from avow.errors import Offline
from avow.testing.programs import Program
from avow.testing.prove_chain.shop import Order

CUSTOMERS: Final = 4
THINK_S: Final = 0.1  # between two orders of a customer
AGAIN_S: Final = 0.1
ANSWER_S: Final = 20.0
PATIENCE_S: Final = 180.0
UNPAID: Final = 8


class Load:
    """`orders`: no more than so many are placed, 0 for no bound."""

    def __init__(
        self,
        shop: Program,
        *,
        seed: int,
        orders: int = 0,
        customers: int = CUSTOMERS,
        think_s: float = THINK_S,
        again_s: float = AGAIN_S,
    ) -> None:
        self._shop, self._seed, self._think_s, self._again_s = shop, seed, think_s, again_s
        self._count = customers
        self._left = iter(range(orders)) if orders else itertools.count()  # `next` of either is one step for threads
        self._stop, self._closed = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(customers, thread_name_prefix="avow-customer")
        self._customers: list[Future[None]] = []
        self.told: dict[str, bool] = {}  # by id: committed, or rolled back
        self.repeated = 0

    def start(self) -> None:
        self._customers = [self._pool.submit(self._buy, number) for number in range(self._count)]

    def stop(self) -> None:
        """Returns when every order is answered. Raises Offline if one never was."""
        self.finish()
        for customer in self._customers:
            customer.result()

    def finish(self) -> None:
        """No further orders; those that are open go on."""
        self._stop.set()

    @property
    def over(self) -> bool:
        """Nobody orders any more: all are answered, or given up."""
        return all(customer.done() for customer in self._customers)

    def close(self) -> None:
        """Orders without an answer stay so."""
        self._stop.set()
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def _buy(self, customer: int) -> None:
        draw, number = random.Random(f"{self._seed}/{customer}"), 0
        while not self._stop.is_set() and next(self._left, None) is not None:
            number += 1
            order = Order(f"o-{self._seed}-{customer}-{number}", draw.randint(1, 99), draw.randrange(UNPAID) > 0)
            self.told[order.id] = self._ask_until_told(order)
            self._stop.wait(self._think_s)

    def _ask_until_told(self, order: Order) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self._closed.is_set():
            committed = self._ask(order)
            if committed is not None:
                return committed
            self.repeated += 1
            self._closed.wait(self._again_s)
        raise Offline(f"order {order.id} was never answered; {self._shop.last_words()}")

    def _ask(self, order: Order) -> bool | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._shop.port, timeout=ANSWER_S)
        try:
            connection.request("POST", "/orders", msgspec.json.encode(order))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return msgspec.json.decode(body, type=dict[str, bool | None])["committed"] if answer.status == 200 else None
