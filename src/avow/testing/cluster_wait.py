"""Waiting with a timeout for a condition that another process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from avow.errors import Offline

PAUSE_S: Final = 0.02

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], *, timeout_s: float = 60.0, what: str | Callable[[], str] = "") -> T:
    """Returns the first true value of `predicate`. Raises Offline after the timeout; `what` describes the condition."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            described = what() if callable(what) else what
            raise Offline(f"timed out after {timeout_s:g} s: {described or 'the condition did not become true'}")
        time.sleep(PAUSE_S)
