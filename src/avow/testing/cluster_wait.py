"""Waiting for something that another process brings about: bounded, and named when it does not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from avow.errors import Offline

PAUSE_S: Final = 0.02

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], *, timeout_s: float = 20.0, what: str | Callable[[], str] = "") -> T:
    """The first true value of `predicate`. Raises Offline with `what`, which says what was awaited."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            named = what() if callable(what) else what
            raise Offline(f"waited {timeout_s:g} s in vain: {named or 'it did not come about'}")
        time.sleep(PAUSE_S)
