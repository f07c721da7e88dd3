"""When each component of a node must be ticked next, so that a tick costs what is due and not what exists.

A heap of (time, route), with one entry in force for each route: the earliest one noted since the route was last taken.
A later time is not noted, because then every message would move an entry. So a component may be ticked too early, which
does nothing, and says its time again when it is drained.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf


class DueTimes:
    __slots__ = ("_at", "_heap", "taken")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._at: dict[int, float] = {}  # route -> the time of its entry in force
        self.taken = 0  # routes handed out so far

    def note(self, route: int, at: float) -> None:
        """The route is due at this time, or earlier if that is noted already. Infinity: nothing will be due."""
        if at < self._at.get(route, inf):
            self._at[route] = at
            heappush(self._heap, (at, route))

    def forget(self, route: int) -> None:
        self._at.pop(route, None)

    def take(self, now: float) -> list[int]:
        """The routes that are due, each once, the longest due first."""
        heap, in_force, due = self._heap, self._at, []
        while heap and heap[0][0] <= now:
            at, route = heappop(heap)
            if in_force.get(route) == at:
                del in_force[route]
                due.append(route)
        self.taken += len(due)
        return due
