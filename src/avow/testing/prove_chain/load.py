"""Customers: each places one order after the other, and asks again with the same id until it is told what became of it.

One order in eight is not paid, so its transaction is rolled back after its work: no message may come of it.
"""

from __future__ import annotations

import http.client
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
    def __init__(self, shop: Program, *, seed: int) -> None:
        self._shop, self._seed = shop, seed
        self._stop, self._closed = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(CUSTOMERS, thread_name_prefix="avow-customer")
        self._customers: list[Future[None]] = []
        self.told: dict[str, bool] = {}  # by id: committed, or rolled back
        self.repeated = 0

    def start(self) -> None:
        self._customers = [self._pool.submit(self._buy, number) for number in range(CUSTOMERS)]

    def stop(self) -> None:
        """Returns when every order is answered. Raises Offline if one never was."""
        self._stop.set()
        for customer in self._customers:
            customer.result()

    def close(self) -> None:
        """Orders without an answer stay so."""
        self._stop.set()
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def _buy(self, customer: int) -> None:
        draw, number = random.Random(f"{self._seed}/{customer}"), 0
        while not self._stop.is_set():
            number += 1
            order = Order(f"o-{self._seed}-{customer}-{number}", draw.randint(1, 99), draw.randrange(UNPAID) > 0)
            self.told[order.id] = self._ask_until_told(order)
            self._stop.wait(THINK_S)

    def _ask_until_told(self, order: Order) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self._closed.is_set():
            committed = self._ask(order)
            if committed is not None:
                return committed
            self.repeated += 1
            self._closed.wait(AGAIN_S)
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
