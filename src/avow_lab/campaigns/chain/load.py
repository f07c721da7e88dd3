"""Customers: each places one order after the other, and repeats a request with the same id until it gets an answer.

One order in eight is not paid: its transaction is rolled back after its work, and no message may result.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from avow.errors import Offline
from avow.transport.blocking import BlockingConnection
from avow.wire.http import Address, Lost
from avow_lab.campaigns.chain.shop import Order
from avow_lab.campaigns.harness.programs import Program

CUSTOMERS: Final = 4
THINK_S: Final = 0.1  # between two orders of a customer
RETRY_S: Final = 0.1
ANSWER_S: Final = 20.0
ORDER_TIMEOUT_S: Final = 180.0
UNPAID: Final = 8


class Load:
    """`orders`: the maximum number of orders; 0: no bound."""

    def __init__(
        self,
        shop: Program,
        *,
        seed: int,
        orders: int = 0,
        customers: int = CUSTOMERS,
        think_s: float = THINK_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._shop, self._seed, self._think_s, self._retry_s = shop, seed, think_s, retry_s
        self._count = customers
        self._left = iter(range(orders)) if orders else itertools.count()  # `next` of either is atomic
        self._stop, self._closed = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(customers, thread_name_prefix="avow-customer")
        self._customers: list[Future[None]] = []
        self.answers: dict[str, bool] = {}  # by id: committed, or rolled back
        self.repeated = 0

    def start(self) -> None:
        self._customers = [self._pool.submit(self._buy, number) for number in range(self._count)]

    def stop(self) -> None:
        """Returns when every order is answered. Raises Offline when one was not answered in time."""
        self.finish()
        for customer in self._customers:
            customer.result()

    def finish(self) -> None:
        """Place no further orders. Open ones go on."""
        self._stop.set()

    @property
    def over(self) -> bool:
        """Every order is answered or given up, and no more will be placed."""
        return all(customer.done() for customer in self._customers)

    def close(self) -> None:
        """Give up orders without an answer."""
        self._stop.set()
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def _buy(self, customer: int) -> None:
        draw, number = random.Random(f"{self._seed}/{customer}"), 0
        while not self._stop.is_set() and next(self._left, None) is not None:
            number += 1
            order = Order(f"o-{self._seed}-{customer}-{number}", draw.randint(1, 99), draw.randrange(UNPAID) > 0)
            self.answers[order.id] = self._order(order)
            self._stop.wait(self._think_s)

    def _order(self, order: Order) -> bool:
        deadline = time.monotonic() + ORDER_TIMEOUT_S
        while time.monotonic() < deadline and not self._closed.is_set():
            committed = self._ask(order)
            if committed is not None:
                return committed
            self.repeated += 1
            self._closed.wait(self._retry_s)
        raise Offline(f"order {order.id} was not answered within {ORDER_TIMEOUT_S:g} s; {self._shop.log_tail()}")

    def _ask(self, order: Order) -> bool | None:
        with BlockingConnection(Address("127.0.0.1", self._shop.port)) as connection:
            answer = connection.request("POST", "/orders", body=msgspec.json.encode(order), timeout_s=ANSWER_S)
        if isinstance(answer, Lost) or answer.status != 200:
            return None
        return msgspec.json.decode(answer.body, type=dict[str, bool | None])["committed"]
