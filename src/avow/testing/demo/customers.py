"""The demo's customers: as in the campaign, and each notes how long it waited for an answer.

Somebody who is killed shows in what others wait for it. So the figure that is shown is not how long a peer took to
take over, which nobody feels, but the longest time between an order and its answer while it did; beside it the usual
time, since a wait means nothing without it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from avow.testing.programs import Program
from avow.testing.prove_chain.load import PATIENCE_S, Load
from avow.testing.prove_chain.shop import Order

CUSTOMERS: Final = 6
THINK_S: Final = 0.05
AGAIN_S: Final = 0.5  # a person who got no answer looks up first


FIRST: Final = "first"


class Waited(Struct, frozen=True):
    """An order and its answer, in seconds of one clock."""

    order: str
    asked_s: float
    told_s: float

    @property
    def took_s(self) -> float:
        return self.told_s - self.asked_s


class Customers(Load):
    def __init__(self, shop: Program, *, seed: int, orders: int = 0) -> None:
        super().__init__(shop, seed=seed, orders=orders, customers=CUSTOMERS, think_s=THINK_S, again_s=AGAIN_S)
        self._waited: list[Waited] = []
        self._first = 0
        self._door = threading.Event()
        self._door.set()

    def order_one(self) -> None:
        """Of the first customer, who comes while Spark still starts."""
        self._first += 1
        order = Order(f"o-{self._seed}-{FIRST}-{self._first}", 1)
        self.told[order.id] = super()._ask_until_told(order)

    @contextmanager
    def kept_outside(self) -> Iterator[None]:
        """Nobody asks while the block runs, so that whoever decides about open orders was not a customer."""
        self._door.clear()
        try:
            yield
        finally:
            self._door.set()

    def _ask(self, order: Order) -> bool | None:
        self._door.wait(PATIENCE_S)
        return super()._ask(order)

    def _ask_until_told(self, order: Order) -> bool:
        asked_s = time.monotonic()
        told = super()._ask_until_told(order)
        self._waited.append(Waited(order.id, asked_s, time.monotonic()))
        return told

    @property
    def answered(self) -> int:
        """Orders of all but the first customer."""
        return len(self._waited)

    @property
    def counts(self) -> tuple[int, int]:
        """Customers who were told: committed, and rolled back."""
        told = list(self.told.values())
        return sum(told), len(told) - sum(told)

    def usual_s(self, *, until_s: float) -> float:
        """The median of what was answered until then."""
        found = [one.took_s for one in tuple(self._waited) if one.told_s <= until_s]
        return statistics.median(found) if found else 0.0

    def longest_s(self, *, since_s: float) -> float:
        """Of all orders that were open at that moment or came later."""
        return max((one.took_s for one in tuple(self._waited) if one.told_s >= since_s), default=0.0)

    def served_since(self, moment_s: float) -> bool:
        """Whether each customer has got an answer to an order that it placed after that moment; or all are done."""
        served = {customer_of(one.order) for one in tuple(self._waited) if one.asked_s >= moment_s}
        return len(served) == CUSTOMERS or self.over


def customer_of(order: str) -> str:
    """o-SEED-CUSTOMER-NUMBER"""
    return order.rsplit("-", 2)[1]
