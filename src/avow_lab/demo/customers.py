"""The demo's customers: those of the campaign, with the time that each order waited for its answer.

The effect of a kill is what customers wait. So the demo shows the longest time between an order and its answer during a
take-over, and not only how long the take-over took; the usual time is shown for comparison.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from avow_lab.campaigns.chain.load import ORDER_TIMEOUT_S, Load
from avow_lab.campaigns.chain.shop import Order
from avow_lab.campaigns.harness.programs import Program

CUSTOMERS: Final = 6
THINK_S: Final = 0.05
RETRY_S: Final = 0.5


FIRST: Final = "first"


class Waited(Struct, frozen=True):
    """An order and its answer, in seconds of one clock."""

    order: str
    asked_s: float
    answered_s: float

    @property
    def took_s(self) -> float:
        return self.answered_s - self.asked_s


class Customers(Load):
    def __init__(self, shop: Program, *, seed: int, orders: int = 0) -> None:
        super().__init__(shop, seed=seed, orders=orders, customers=CUSTOMERS, think_s=THINK_S, retry_s=RETRY_S)
        self._waited: list[Waited] = []
        self._first = 0
        self._door = threading.Event()
        self._door.set()

    def order_one(self) -> None:
        """By the first customer, while Spark still starts."""
        self._first += 1
        order = Order(f"o-{self._seed}-{FIRST}-{self._first}", 1)
        self.answers[order.id] = super()._order(order)

    @contextmanager
    def kept_outside(self) -> Iterator[None]:
        """No customer sends a request while the block runs, so that none of them can decide an open order."""
        self._door.clear()
        try:
            yield
        finally:
            self._door.set()

    def _ask(self, order: Order) -> bool | None:
        self._door.wait(ORDER_TIMEOUT_S)
        return super()._ask(order)

    def _order(self, order: Order) -> bool:
        asked_s = time.monotonic()
        committed = super()._order(order)
        self._waited.append(Waited(order.id, asked_s, time.monotonic()))
        return committed

    @property
    def answered(self) -> int:
        """Orders of all but the first customer."""
        return len(self._waited)

    @property
    def counts(self) -> tuple[int, int]:
        """Orders with the answer committed, and with the answer rolled back."""
        answers = list(self.answers.values())
        return sum(answers), len(answers) - sum(answers)

    def usual_s(self, *, until_s: float) -> float:
        """The median of the orders that were answered until then."""
        found = [one.took_s for one in tuple(self._waited) if one.answered_s <= until_s]
        return statistics.median(found) if found else 0.0

    def longest_s(self, *, since_s: float) -> float:
        """Of all orders that were open at that moment or came later."""
        return max((one.took_s for one in tuple(self._waited) if one.answered_s >= since_s), default=0.0)

    def served_since(self, moment_s: float) -> bool:
        """Whether each customer has an answer to an order that it placed after that time, or all are done."""
        served = {customer_of(one.order) for one in tuple(self._waited) if one.asked_s >= moment_s}
        return len(served) == CUSTOMERS or self.over


def customer_of(order: str) -> str:
    """o-SEED-CUSTOMER-NUMBER"""
    return order.rsplit("-", 2)[1]
