"""One timer of the event loop, for the earliest time that was set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class Timer:
    """Calls `call` at the time that was set, or later. `set` ignores a time that is not earlier than the current one,
    so calling it for each batch costs one comparison."""

    __slots__ = ("_at", "_call", "_timer")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._at = inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float, now: float) -> None:
        if at < self._at:
            self.cancel()
            self._at = at
            self._timer = asyncio.get_running_loop().call_later(max(at - now, 0.0), self._fired)

    def cancel(self) -> None:
        self._at = inf
        if self._timer is not None:
            self._timer.cancel()

    def _fired(self) -> None:
        self._timer, self._at = None, inf
        self._call()
